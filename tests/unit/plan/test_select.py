"""Decisions by the keys of rules, by class, precision and compound."""

from collections.abc import Mapping

import pytest

from amprewrite.errors import PlanMismatchError
from tests.plan_text import plan_of

TEXT = """
%x: f32[4,8] input
%w: f32[8,8] parameter
linear = linear(%x, %w) -> %h: f32[4,8]
  | native="aten.linear.default" path="body.0" source="m.py:1"
exp = exp(%h) -> %e: f32[4,8]
  | path="body.1" source="m.py:2" calls=["softmax#1"]
mean = mean(%e) -> %m: f32[4]
  | path="body.10" source="m.py:3"
return %m
"""


@pytest.mark.parametrize(
    ("keys", "ops"),
    [
        ({}, "linear exp mean"),
        ({"path": "body"}, "linear exp mean"),
        ({"path": "body.1"}, "exp"),
        ({"path": "body.1*"}, "exp mean"),
        ({"op": "lin*"}, "linear"),
        ({"native": "aten.*"}, "linear"),
        ({"op_name": "mean"}, "mean"),
        ({"group": "exponential"}, "exp"),
        ({"source": "m.py:3"}, "mean"),
        ({"op_class": "deny"}, "exp mean"),
        ({"precision": "bf16"}, "linear"),
        ({"precision": "float32", "path": "body.1"}, "exp"),
        ({"compound": "softmax"}, "exp"),
        ({"compound": "softmax#2"}, ""),
    ],
)
def test_all_that_is_given_has_to_match(keys: Mapping[str, str], ops: str) -> None:
    assert " ".join(d.op for d in plan_of(TEXT).select(**keys)) == ops


@pytest.mark.parametrize(
    "keys", [{"op_class": "denny"}, {"precision": "bf61"}, {"compound": "softmix"}]
)
def test_a_word_that_no_plan_has_is_refused(keys: Mapping[str, str]) -> None:
    (key,) = keys
    with pytest.raises(PlanMismatchError, match=rf"select\({key}='.*want one of"):
        plan_of(TEXT).select(**keys)


def test_a_key_that_no_rule_has_is_refused() -> None:
    with pytest.raises(TypeError, match=r"no key 'opp'; want some of path, group, op,"):
        plan_of(TEXT).select(opp="exp")  # pyright: ignore[reportCallIssue]
