"""Rules as globs, and how they print."""

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
        ({"path": "decoder"}, False),
        ({"path": "Decoder.*"}, False),
        ({"op": "linear"}, True),
        ({"op": "line*"}, True),
        ({"op": "matmul"}, False),
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
