"""Rules as globs, and how they print."""

from dataclasses import replace

import pytest

from amprewrite.ir import Op
from amprewrite.policy import OpClass, Rule, load_policy

OP = Op(
    name="linear_3",
    canonical="linear",
    native="aten.linear.default",
    operands=("x", "w"),
    results=("y",),
    path="decoder.1.norm",
    source="model.py:41",
)


@pytest.mark.parametrize(
    ("keys", "matches"),
    [
        ({}, True),
        ({"path": "decoder.*.norm"}, True),
        ({"path": "decoder"}, True),
        ({"path": "decoder.1"}, True),
        ({"path": "decoder.1.norm"}, True),
        ({"path": "decoder.1.norm.0"}, False),
        ({"path": "decoder.10"}, False),
        ({"path": "decode"}, False),
        ({"path": ""}, False),
        ({"path": "norm"}, False),
        ({"path": "*.norm"}, True),
        ({"path": "decoder.1*"}, True),
        ({"path": "Decoder.*"}, False),
        ({"op": "linear"}, True),
        ({"op": "line*"}, True),
        ({"op": "matmul"}, False),
        ({"op": "aten.linear.default"}, True),
        ({"op": "aten::linear"}, True),
        ({"native": "aten.linear.*"}, True),
        ({"op_name": "linear_3"}, True),
        ({"op_name": "linear"}, False),
        ({"source": "model.py:4?"}, True),
        ({"path": "decoder.*", "op": "linear"}, True),
        ({"path": "decoder.*", "op": "matmul"}, False),
    ],
)
def test_every_key_that_is_given_must_match(keys, matches):
    assert Rule(op_class=OpClass.DENY, **keys).matches(OP) is matches


def test_a_rule_prints_as_its_table():
    rule = Rule(op_class=OpClass.DENY, op="linear", path="decoder.*", why="not shown")
    assert str(rule) == "{ path = 'decoder.*', op = 'linear', class = 'deny' }"


def test_a_policy_prints_its_switches_and_not_its_ops() -> None:
    policy = load_policy("bf16")
    assert len(repr(policy)) < 400
    assert "lookups='full'" in repr(policy)


def test_a_module_is_not_one_whose_name_goes_on() -> None:
    rule = Rule(op_class=OpClass.DENY, path="layer.1")
    paths = (
        "layer.1",
        "layer.1.norm",
        "layer.10",
        "layer.10.norm",
        "layer",
        "a.layer.1",
    )
    assert [rule.matches(replace(OP, path=path)) for path in paths] == [
        *(True, True, False, False, False, False)
    ]
    glob = Rule(op_class=OpClass.DENY, path="layer.1*")
    assert glob.matches(replace(OP, path="layer.10"))
    root = Rule(op_class=OpClass.DENY, path="")
    assert root.matches(replace(OP, path=""))


def test_the_keys_that_are_given() -> None:
    rule = Rule(op_class=OpClass.DENY, op="linear", path="", why="not one")
    assert rule.keys == {"path": "", "op": "linear"}
