"""Placement ``paint``, step by step."""

import pytest

from amprewrite.passes import Setting, make_plan
from amprewrite.policy import Matcher, load_policy
from tests.placement_problem import graph_of

HEAD = """
    %x: f32[8,8] input
    %w: f32[8,8] parameter
    first = linear(%x, %w) -> %h: f32[8,8]
"""


def painted(text: str, policy: str = "bf16") -> list[str]:
    matcher = Matcher(load_policy(policy))
    plan = make_plan(graph_of(HEAD + text), matcher, Setting("paint"))
    assert plan.placement == "paint"
    assert plan.cost.lower_bound is None
    return [decision.op for decision in plan.lowered]


def test_what_lies_between_allowed_ops_is_low() -> None:
    text = """
    gelu = gelu(%h) -> %g: f32[8,8]
    relu = relu(%g) -> %r: f32[8,8]
    last = linear(%r, %w) -> %y: f32[8,8]
    return %y
    """
    assert painted(text) == ["first", "gelu", "relu", "last"]


def test_a_denied_op_taints_what_is_inferred_after_it() -> None:
    text = """
    exp = exp(%h) -> %e: f32[8,8]
    add = add(%e, %h) -> %a: f32[8,8]
    last = linear(%a, %w) -> %y: f32[8,8]
    return %y
    """
    assert painted(text) == ["first", "last"]


@pytest.mark.parametrize(("policy", "low"), [("bf16", True), ("fp16", False)])
def test_what_is_inferred_right_after_an_allowed_op_is_low_in_bfloat16(
    policy: str, *, low: bool
) -> None:
    text = """
    tanh = tanh(%h) -> %y: f32[8,8]
    return %y
    """
    assert ("tanh" in painted(text, policy)) == low


def test_the_paint_spreads_over_data_movement() -> None:
    text = """
    turn = transpose(%h) -> %t: f32[8,8]
    exp = exp(%t) -> %y: f32[8,8]
    return %y
    """
    assert painted(text) == ["first", "turn"]


def test_a_storage_that_is_written_in_full_is_full_throughout() -> None:
    text = """
    add = add(%h, %x) -> %a: f32[8,8]
    exp = exp(%a) -> %e: f32[8,8] alias %a
      | mutates=[0]
    view = view(%a) -> %v: f32[64] alias %a
    return %v
    """
    assert painted(text) == ["first", "add"]
