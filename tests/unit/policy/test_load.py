"""Policies by name, by file and by jmp string; what they extend; their mistakes."""

import dataclasses
import os
import tomllib
from pathlib import Path

import pytest

from amprewrite import errors, load_policy
from amprewrite.errors import PolicyError
from amprewrite.ops import op_table
from amprewrite.policy import OpClass, OpEntry, Policy, shipped_policies
from amprewrite.policy.load import known_ops, policy_folder


@pytest.fixture
def write(tmp_path):
    def write(text, name="mine.toml"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def refusal(policy):
    with pytest.raises(PolicyError) as caught:
        load_policy(policy)
    return caught.value


def test_shipped_policies_all_load():
    names = shipped_policies()
    assert {"autocast-cpu", "autocast-cuda", "bf16", "fp16", "off"} <= set(names)
    assert {"bf16-accumulate", "fp16-accumulate", "fp8", "unit-fp8"} <= set(names)
    assert list(names) == sorted(names)
    for name in names:
        assert load_policy(name).name == name


def test_the_policy_that_others_extend_is_one_page():
    lines = (policy_folder() / "bf16.toml").read_text("utf-8").splitlines()
    assert len(lines) <= 80


@pytest.mark.parametrize("name", ["autocast-cpu", "autocast-cuda", "bf16"])
def test_a_policy_that_extends_no_other_names_every_group(name):
    text = (policy_folder() / f"{name}.toml").read_text("utf-8")
    data = tomllib.loads(text)
    assert "extends" not in data
    assert set(op_table().groups) - set(data["groups"]) == {"cast"}


def test_a_policy_is_given_back_as_it_is():
    policy = Policy(name="mine", low="bfloat16")
    assert load_policy(policy) is policy


def test_the_folder_inside_the_package_comes_first(monkeypatch, tmp_path):
    """A wheel has the policies inside the package, an editable install beside it."""
    monkeypatch.setattr(errors, "__file__", str(tmp_path / "package" / "errors.py"))
    assert policy_folder() == tmp_path / "policies"
    (tmp_path / "package" / "policies").mkdir(parents=True)
    assert policy_folder() == tmp_path / "package" / "policies"


def test_extends_a_shipped_policy(write):
    text = 'extends = "bf16"\n[ops]\nsoftmax = "allow"\n"mylib::scan" = "deny"\n'
    mine, base = load_policy(write(text)), load_policy("bf16")
    changed = {op for op in mine.ops if mine.ops[op] != base.ops.get(op)}
    assert changed == {"softmax", "mylib::scan"}
    assert mine.ops["softmax"].op_class == "allow"
    assert (mine.low, mine.full, mine.demand) == (base.low, base.full, base.demand)
    assert str(mine.name).endswith("mine.toml")


def test_extends_a_file_beside_it_and_its_rules_come_after(write):
    rule = '[[rules]]\npath = "{}"\nclass = "deny"\n'
    write(
        'extends = "fp16"\n[ops]\nmatmul = "deny"\n' + rule.format("base"), "base.toml"
    )
    mine = load_policy(write('extends = "base.toml"\n' + rule.format("mine")))
    assert mine.low == "float16"
    assert mine.ops["matmul"].op_class == "deny"
    assert [r.path for r in mine.rules] == ["mine", "base"]


def test_a_group_is_all_of_its_ops(write):
    text = """
        [groups]
        softmax = { class = "deny", why = "range" }
        lookup = "follow"
        [ops]
        log_softmax = "accumulate"
        "mylib::scan" = "allow"
    """
    mine = load_policy(write(text)).ops
    assert mine["softmax"] == OpEntry(OpClass.DENY, "range", "softmax")
    assert mine["log_softmax"] == OpEntry(OpClass.ACCUMULATE)
    lookups = {op: e.op_class for op, e in mine.items() if e.group == "lookup"}
    assert lookups == {"embedding": "follow", "index_select": "follow"}
    assert "mylib::scan" in mine
    assert "exp" not in mine
    assert list(mine) == sorted(mine)


def test_what_a_base_says_of_an_op_stands_before_what_a_file_says_of_its_group(write):
    write('[groups]\nsoftmax = "deny"\n[ops]\nsoftmin = "promote"\n', "base.toml")
    mine = load_policy(write('extends = "base.toml"\n[groups]\nsoftmax = "allow"\n'))
    assert mine.ops["softmin"].op_class == "promote"
    assert mine.ops["softmax"].op_class == "allow"


def test_an_op_of_a_policy_with_groups_may_be_misspelt(write):
    error = refusal(write('[groups]\nsum = "deny"\n[ops]\nsofmax = "deny"\n'))
    assert error.mistakes == ("ops.sofmax: unknown op (did you mean 'softmax'?)",)


def test_an_unknown_group_is_told_the_nearest(write):
    text = """
        [groups]
        softmx = "deny"
        [[rules]]
        group = "los"
        class = "deny"
        [[rules]]
        group = "*_sum"
        class = "deny"
    """
    first, second = refusal(write(text)).mistakes
    assert first.startswith("groups.softmx: unknown group 'softmx'; want one of act")
    assert first.endswith("(did you mean 'softmax'?)")
    assert second.startswith("rules[0].group: unknown group 'los'")


def test_keys_that_are_not_given_are_inherited(write):
    write('[dtypes]\nlow = "float16"\n[placement]\ndemand = false\n', "base.toml")
    text = (
        'extends = "base.toml"\n[dtypes]\noutput = "low"\n[placement]\nlookups = "low"'
    )
    mine = load_policy(write(text))
    assert (mine.low, mine.output, mine.demand, mine.lookups) == (
        "float16",
        "low",
        False,
        "low",
    )


def test_a_cycle_is_named(write):
    write('extends = "b.toml"\n', "a.toml")
    b = write('extends = "a.toml"\n', "b.toml")
    message = str(refusal(b))
    assert "extends itself" in message
    assert message.count("b.toml ->") == 1
    assert message.endswith("b.toml")


def test_an_op_has_one_class_because_toml_says_so(write):
    message = str(refusal(write('[ops]\nmatmul = "allow"\nmatmul = "deny"\n')))
    assert "line 3" in message
    assert "only one class" in message


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("bf61", ("unknown policy 'bf61'", "did you mean 'bf16'?", "autocast-cpu")),
        ("nothing_like_it", ("unknown policy", "want ")),
        ("nowhere/mine.toml", ("cannot be read", "want a TOML file")),
    ],
)
def test_a_policy_that_is_not_there(given, words):
    message = str(refusal(given))
    for word in words:
        assert word in message


def test_a_rule_for_an_op_that_is_misspelt_is_told_the_nearest(write):
    rule = '[[rules]]\nop = "{}"\nclass = "deny"\n'
    error = refusal(write('extends = "bf16"\n' + rule.format("layernorm")))
    (mistake,) = error.mistakes
    assert "rules[0].op: unknown op 'layernorm' (did you mean 'layer_norm'?)" in mistake
    assert refusal(write(rule.format("soft_max"))).mistakes
    own = '[ops]\nlayernorm = "allow"\n' + rule.format("layernorm")
    assert load_policy(write(own)).rules[0].op == "layernorm"


def test_every_op_of_a_shipped_policy_is_known():
    for name in shipped_policies():
        ops = {op.removeprefix("aten::") for op in load_policy(name).ops}
        assert ops <= known_ops()


def test_mistakes_of_a_file_and_of_its_base_are_told_together(write):
    write('[dtypes]\nlow = "bfloat61"\n', "deep.toml")
    write('extends = "deep.toml"\n[placement]\ndemnd = true\n', "base.toml")
    text = 'extends = "base.toml"\n[ops]\nsofmax = "deny"\nexp = "allouw"\n'
    error = refusal(write(text))
    assert str(error).splitlines()[0].endswith("mine.toml: 4 mistakes")
    keys = [mistake.rpartition(": ")[0] or mistake for mistake in error.mistakes]
    assert "ops.sofmax: unknown op (did you mean 'softmax'?)" in error.mistakes
    assert any(key.startswith("ops.exp.class: unknown") for key in error.mistakes)
    assert any(
        key.startswith("extends base.toml: placement.demnd") for key in error.mistakes
    ), keys
    inner = "extends base.toml: extends deep.toml: dtypes.low: "
    assert any(key.startswith(inner) for key in error.mistakes)


def test_mistakes_of_a_file_are_told_with_a_base_that_is_not_there(write):
    error = refusal(write('extends = "fp61"\n[ops]\nexp = "allouw"\n'))
    first, second = error.mistakes
    assert first.startswith("ops.exp.class: unknown class 'allouw'")
    assert second.startswith("extends: unknown policy 'fp61'; want ")
    missing = refusal(write('extends = "no.toml"\n[ops]\nexp = "allouw"\n'))
    assert "no.toml: cannot be read" in missing.mistakes[1]


def test_a_base_alone_has_its_own_mistakes(write):
    write("[placement]\ndemnd = true\n", "base.toml")
    message = str(refusal(write('extends = "base.toml"\n')))
    assert message.splitlines()[0].endswith("base.toml: 1 mistake")


def test_an_unknown_base_is_named_with_the_nearest(write):
    message = str(refusal(write('extends = "fp61"\n')))
    assert "mine.toml: extends: unknown policy 'fp61'" in message
    assert "did you mean 'fp16'?" in message


def test_a_file_that_is_no_text(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_bytes(b"\xff\xfe\x00")
    assert "is no text in UTF-8" in str(refusal(path))


@pytest.mark.parametrize(
    ("name", "text"),
    [("deep.toml", "x = " + "[" * 100_000), ("long.toml", f"x = {'9' * 5_000}")],
)
def test_a_file_that_toml_cannot_hold(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    assert str(refusal(path)).startswith(f"policy {path}: is n")


def test_a_file_that_is_too_large(tmp_path):
    path = tmp_path / "large.toml"
    path.write_text("#" * (2**20 + 1))
    assert "has more than 1,048,576 bytes; want a TOML file" in str(refusal(path))


def test_what_is_no_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe.toml")
    for path in (tmp_path / "pipe.toml", Path("/dev/zero")):
        assert "it is a pipe or a device" in str(refusal(path))
    assert "null byte" in str(refusal(tmp_path / "nul\0.toml"))


def test_a_circle_is_seen_under_other_names(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "e1.toml").write_text('extends = "sub/../e1.toml"\n')
    assert "extends itself: " in str(refusal(tmp_path / "e1.toml"))


def test_a_long_chain_is_refused(tmp_path):
    for number in range(1_500):
        (tmp_path / f"e{number}.toml").write_text(f'extends = "e{number + 1}.toml"\n')
    message = str(refusal(tmp_path / "e0.toml"))
    assert "extends more than 32 files, one the other: " in message


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("params=float32,compute=bfloat16,output=float32", ("bfloat16", "float32")),
        ("p=f32,c=f16,o=f32", ("float16", "float32")),
        ("compute=bf16", ("bfloat16", "as-traced")),
        ("params=half,compute=half,output=half", ("float16", "float16")),
        (" params = full , compute = half ", ("float16", "as-traced")),
        ("output=float64,compute=bfloat16", ("bfloat16", "float64")),
        ("params=float32", ("", "as-traced")),
    ],
)
def test_jmp_strings(text, want):
    policy = load_policy(text)
    assert (policy.low, policy.output) == want
    assert policy.name == text


def test_a_jmp_string_has_the_ops_of_its_base():
    policy = load_policy("compute=float16,output=float32")
    base = load_policy("fp16")
    changes = {"name": base.name, "output": base.output}
    assert dataclasses.replace(policy, **changes) == base


def test_every_mistake_of_a_jmp_string_is_named():
    error = refusal("param=float32,compute=int8,output=bf61")
    assert [line.partition(":")[0] for line in error.mistakes] == [
        "param",
        "compute",
        "output",
    ]
    assert "3 mistakes" in str(error)


def test_jmp_parameters_are_full_or_as_computed():
    assert "params" in str(refusal("params=float16,compute=bfloat16"))
