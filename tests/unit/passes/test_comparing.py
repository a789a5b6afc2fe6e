"""Values that are moved to a comparison are not rounded on the way."""

import pytest

from amprewrite.passes import Setting, make_plan
from amprewrite.passes.classify import classify
from amprewrite.passes.comparing import compared_moves
from amprewrite.passes.cost import Objective
from amprewrite.passes.cost_model import COMPILED
from amprewrite.policy import Matcher, load_policy
from tests.placement_problem import graph_of

BF16 = load_policy("bf16")

MAXIMUM = """
    %x: f32[512,512] input
    %y: f32[512,512] input
    %w: f32[512,512] parameter
    top = maximum(%x, %y) -> %m: f32[512,512]
    turn = transpose(%m) -> %t: f32[512,512]
    eq = eq(%t, %x) -> %e: b8[512,512]
    product = linear(%m, %w) -> %h: f32[512,512]
      | contracted=512
    other = transpose(%h) -> %o: f32[512,512]
    where = where(%e, %h, %o) -> %z: f32[512,512]
    last = linear(%z, %w) -> %r: f32[512,512]
      | contracted=512
    return %r
"""


def test_what_is_moved_to_a_comparison_is_found() -> None:
    graph = graph_of(MAXIMUM)
    moved = compared_moves(graph, classify(graph, Matcher(BF16)))
    assert moved == {"top", "turn"}


@pytest.mark.parametrize("placement", ["paint", "optimal"])
def test_a_maximum_of_full_values_that_is_compared_is_full(placement: str) -> None:
    setting = Setting(placement, objective=Objective(COMPILED))
    plan = make_plan(graph_of(MAXIMUM), Matcher(BF16), setting)
    found = {d.op: d.precision for d in plan.decisions}
    assert (found["top"], found["turn"]) == ("float32", "float32")
    assert found["product"] == "bfloat16"
