"""What is known before a walk."""

from amprewrite.passes.placement import NOTHING_PLACED, Placement


def test_before_the_first_walk_nothing_is_placed() -> None:
    assert Placement() == NOTHING_PLACED
    assert not NOTHING_PLACED.ops
    assert not NOTHING_PLACED.stored
    assert not NOTHING_PLACED.pinned
    assert not NOTHING_PLACED.accumulating
