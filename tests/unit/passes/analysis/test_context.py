"""What is known before a walk, which all plans share."""

from amprewrite.passes.analysis.context import NOTHING_PLACED, Placement
from tests.plan_text import plan_of


def test_a_walk_leaves_what_was_known_before_as_it_was() -> None:
    plan = plan_of("""
    %x: f32[4,8] input
    %w: f32[8,8] parameter
    linear = linear(%x, %w) -> %h: f32[4,8]
    last = softmax(%h) -> %y: f32[4,8]
    return %y
    """)
    assert plan.lowered
    assert Placement() == NOTHING_PLACED
