"""The policy file: every mistake at once, each with its key and what is wanted."""

import tomllib

import pytest

from amprewrite.errors import PolicyError
from amprewrite.policy import OpClass, Rule
from amprewrite.policy.schema import (
    read_rules,
    read_table,
)
from amprewrite.policy.spelling import MOST


def mistakes(text, known=()):
    with pytest.raises(PolicyError) as caught:
        read_table(tomllib.loads(text), "mine.toml", known)
    error = caught.value
    assert str(error).startswith("policy mine.toml: ")
    return {line.partition(": ")[0]: line for line in error.mistakes}


def test_every_mistake_at_once():
    found = mistakes("""
        extends = 3
        descripshun = "x"
        [dtypes]
        low = "bfloat61"
        lw = "bfloat16"
        [placement]
        demand = "perhaps"
        lookups = "lwo"
        [ops]
        exp = 3
        matmul = "allouw"
        softmax = { clas = "deny" }
        [[rules]]
        path = "encoder.*"
        [[rules]]
        pth = "encoder.*"
        class = "denny"
    """)
    assert sorted(found) == [
        *("descripshun", "dtypes.low", "dtypes.lw", "extends", "ops.exp.class"),
        *("ops.matmul.class", "ops.softmax.clas", "ops.softmax.class"),
        *("placement.demand", "placement.lookups"),
        *("rules[0].class", "rules[1].class", "rules[1].pth"),
    ]
    assert "did you mean 'description'?" in found["descripshun"]
    assert "did you mean 'bfloat16'?" in found["dtypes.low"]
    assert "did you mean 'low'?" in found["dtypes.lw"]
    assert "unknown class 'allouw'" in found["ops.matmul.class"]
    assert "did you mean 'allow'?" in found["ops.matmul.class"]
    assert "did you mean 'class'?" in found["ops.softmax.clas"]
    assert "missing" in found["rules[0].class"]
    assert "did you mean 'path'?" in found["rules[1].pth"]


@pytest.mark.parametrize(
    ("key", "dtype"),
    [
        *(("low", "int8"), ("low", "complex64"), ("low", "full"), ("low", "low")),
        *(("full", ""), ("full", "int32"), ("full", "as-traced"), ("output", "")),
    ],
)
def test_a_precision_is_a_floating_dtype(key, dtype):
    found = mistakes(f'[dtypes]\n{key} = "{dtype}"\n')
    assert repr(dtype) in found[f"dtypes.{key}"]


@pytest.mark.parametrize(
    ("key", "dtype"),
    [
        *(("low", ""), ("low", "float16"), ("full", "float64")),
        *(("output", "low"), ("output", "full"), ("output", "as-traced")),
        ("output", "float32"),
    ],
)
def test_dtypes_that_are_accepted(key, dtype):
    file = read_table({"dtypes": {key: dtype}}, "mine.toml")
    assert getattr(file.dtypes, key) == dtype


@pytest.mark.parametrize("key", ["low", "full"])
def test_a_precision_without_scales_is_refused(key):
    for name in ("float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"):
        (found,) = mistakes(f'[dtypes]\n{key} = "{name}"').values()
        assert found.startswith(f"dtypes.{key}: found '{name}', of ")
        assert found.endswith("want float16, bfloat16, float32 or float64")


def test_one_mistake_is_not_many():
    with pytest.raises(PolicyError, match=r"1 mistake\n"):
        read_table({"opz": {}}, "mine.toml")


def test_a_misspelt_op_of_the_policy_it_extends():
    found = mistakes('[ops]\nsofmax = "deny"\n', known=("matmul", "softmax"))
    assert found["ops.sofmax"].endswith("unknown op (did you mean 'softmax'?)")


@pytest.mark.parametrize("name", ["mylib::softmx", "mylib.softmx", "entirely_new"])
def test_a_new_op_is_no_misspelt_one(name):
    file = read_table({"ops": {name: "deny"}}, "mine.toml", ("softmax",))
    assert file.ops[name].op_class == "deny"


def test_both_forms_of_an_op():
    ops = {"exp": {"class": "deny", "why": "range"}, "matmul": "allow"}
    file = read_table({"ops": ops}, "mine.toml")
    assert [(str(t.op_class), t.why) for t in file.ops.values()] == [
        ("deny", "range"),
        ("allow", ""),
    ]


def test_ops_that_are_no_table():
    with pytest.raises(PolicyError, match=r"ops: found \['matmul'\]"):
        read_table({"ops": ["matmul"]}, "mine.toml")


def test_a_rule_is_a_table_or_a_rule():
    rule = Rule(op_class=OpClass.DENY, path="a.*", why="it overflows")
    table = {"path": "a.*", "class": "deny", "why": "it overflows"}
    assert read_rules([table], "overrides", ()) == [rule]
    assert read_rules([rule], "overrides", ())[0] is rule


def refused(*rules):
    with pytest.raises(PolicyError) as caught:
        read_rules(rules, "overrides", ("softmax", "exp"))
    return caught.value


def test_every_mistake_of_a_rule():
    rule = {"pathh": "a", "class": "denny", "op": "sofmax", "group": "los"}
    error = refused({"path": "b", "class": "deny"}, rule)
    assert str(error).startswith("overrides[1]: 4 mistakes")
    for word in ("deny", "path", "softmax", "loss"):
        assert any(f"did you mean '{word}'?" in line for line in error.mistakes)


def test_every_mistake_of_every_rule():
    error = refused(
        {"op": "sofmax", "class": "deny"},
        {"op": "exp", "class": "deny"},
        Rule(op_class=OpClass.DENY, group="los"),
        {"path": "a", "class": "denny"},
    )
    assert str(error).startswith("overrides: 3 mistakes")
    keys = [line.partition(": ")[0] for line in error.mistakes]
    assert keys == ["overrides[0].op", "overrides[2].group", "overrides[3].class"]


def test_what_is_no_rule_is_refused_at_once():
    error = refused({"op": "sofmax", "class": "deny"}, 3)
    assert str(error).startswith("overrides[1] is a int; want a table such as")


def test_mistakes_of_both_kinds_are_told_together():
    lines = mistakes(
        """
        [dtypes]
        low = "bfloat61"
        [groups]
        softmx = "deny"
        [ops]
        sofmax = "deny"
        exp = "allouw"
        [[rules]]
        group = "los"
        class = "denny"
        """,
        known=("softmax", "exp"),
    )
    assert sorted(lines) == [
        *("dtypes.low", "groups.softmx", "ops.exp.class", "ops.sofmax"),
        *("rules[0].class", "rules[0].group"),
    ]


@pytest.mark.parametrize("name", ["softmax_{}", "wholly_{}_other"])
def test_many_unknown_ops_are_compared_up_to_a_limit(name):
    names = [name.format(number) for number in range(15_000)]
    known = ("softmax", *(f"op{number}" for number in range(50)))
    with pytest.raises(PolicyError) as caught:
        read_table({"ops": dict.fromkeys(names, "deny")}, "mine.toml", known)
    assert (
        f"ops: {15_000 - MOST} more names of no known op" in caught.value.mistakes[-1]
    )
    assert len(str(caught.value).splitlines()) <= 102


def test_names_of_a_namespace_have_no_limit():
    names = [f"mylib::op{number}" for number in range(2 * MOST)]
    ops = {"ops": dict.fromkeys(names, "deny")}
    assert len(read_table(ops, "mine.toml", ("softmax",)).ops) == 2 * MOST


def test_many_rules_for_one_misspelt_op_cost_one_comparison():
    rule = {"op": "sofmax", "class": "deny"}
    assert len(refused(*[rule] * 1000).mistakes) == 1000
