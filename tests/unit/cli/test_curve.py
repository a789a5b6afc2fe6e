"""Error against bytes on the command line."""

import json
import sys

import pytest

from tests.command_line import done, mistake, run


def test_pareto_shows_the_cheapest_plans(model):
    text = done("pareto", model, "--policy", "fp16")
    assert "lower bound" in text
    assert text.splitlines()[-2].split()[0] == "promote"


def test_pareto_is_json_too(model):
    found = json.loads(
        done("pareto", model, "--json", "--points", "3", "--for", "eager")
    )
    assert found["ok"] is True
    rows = found["points"]
    assert [row["placement"] for row in rows][-2:] == ["optimal", "promote"]
    assert rows[0]["lower_bound"] == rows[0]["total_bytes"]


def test_pareto_draws(model, tmp_path):
    pytest.importorskip("matplotlib")
    file = tmp_path / "curve.svg"
    result = run("pareto", model, "--output", file)
    assert result.exit_code == 0, result.output
    assert f"wrote {file}: error against bytes of" in result.stderr
    assert "<svg" in file.read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--output", "curve.txt"], "want a name that ends in .svg or .png or .pdf"),
        (["--points", "1"], "want at least 2 points"),
        (["--policy", "off"], "a policy with a low dtype"),
        (["--for", "gpu"], "unknown target 'gpu'"),
        (["--override", "deny"], "'deny' has no '='"),
    ],
)
def test_a_mistake_is_one_line(model, options, message):
    assert message in mistake("pareto", model, *options)


def test_what_draws_is_looked_for_before_any_work(model, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    found = mistake("pareto", model + "_missing", "--output", tmp_path / "curve.svg")
    assert "pip install 'amprewrite[plot]'" in found
