"""Policies as tables, as data and as differences."""

import io
import json

from rich.console import Console

from amprewrite.policy import load_policy, shipped_policies
from amprewrite.report import policies


def text_of(table):
    console = Console(file=io.StringIO(), width=160, record=True)
    console.print(table)
    return console.export_text()


def with_rule(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        'extends = "bf16"\n[ops]\ngelu = "deny"\n'
        '[[rules]]\npath = "head.*"\nclass = "deny"\nwhy = "[because]"\n'
    )
    return load_policy(path)


def test_every_shipped_policy_says_what_it_is():
    found = policies.descriptions()
    assert tuple(found) == shipped_policies()
    assert all(found.values())
    text = text_of(policies.names_table())
    assert all(name in text for name in found)


def test_the_table_has_rules_before_ops(tmp_path):
    text = text_of(policies.policy_table(with_rule(tmp_path)))
    assert text.index("rules[0]") < text.index("softmax")
    assert "[because]" in text  # not read as markup
    assert "low bfloat16" in text
    (row,) = (line for line in text.splitlines() if line.split()[:1] == ["mse_loss"])
    assert row.split()[:4] == ["mse_loss", "deny", "loss", "a"]


def test_json_has_everything(tmp_path):
    found = json.loads(json.dumps(policies.policy_json(with_rule(tmp_path))))
    assert found["ops"]["gelu"] == {"class": "deny", "why": ""}
    assert found["ops"]["silu"] == {
        "class": "promote",
        "why": "",
        "group": "activation",
    }
    assert found["rules"] == [{"path": "head.*", "why": "[because]", "class": "deny"}]
    assert found["low"] == "bfloat16"


def test_a_difference_has_settings_ops_and_rules(tmp_path):
    mine, shipped = with_rule(tmp_path), load_policy("bf16")
    assert list(policies.policy_diff(shipped, shipped)) == []
    lines = list(policies.policy_diff(shipped, mine))
    assert lines[0] == "gelu: promote -> deny"
    assert lines[1].startswith("rule { path = 'head.*'")
    assert lines[1].endswith("only in the second")
    assert "low: bfloat16 -> none" in policies.policy_diff(shipped, load_policy("off"))
    assert "gelu: promote -> not named" in policies.policy_diff(
        shipped, load_policy("off")
    )


def test_what_promotes_is_shown():
    shown = policies.policy_json(load_policy("promote"))
    assert (shown["promotion"], shown["truncate_complex"]) == ("jax", False)
