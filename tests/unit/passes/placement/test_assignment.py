"""From assignments to a placement."""

import pytest

from amprewrite.passes.analysis.context import Assignment, Placement
from amprewrite.passes.placement.constraints import (
    Chosen,
    find_freedom,
    place_assignment,
)
from tests.placement_problem import situation_of

TEXT = """
    %x: f32[4,8] input
    %w: f32[8,8] parameter
    turn = transpose(%w) -> %t: f32[8,8] alias %w
    linear = linear(%x, %t) -> %h: f32[4,8]
      | accumulates=true
    gelu = gelu(%h) -> %g: f32[4,8]
    exp = exp(%g) -> %e: f32[4,8]
    return %e
"""
REASONS: dict[Assignment, str] = {"low": "cheap", "full": "dear", "accumulator": "both"}


def place(**assignments: Assignment) -> Placement:
    at = situation_of(TEXT)
    freedom = find_freedom(at, keep_parameter_dtype=False)
    chosen = Chosen(freedom, assignments, REASONS)
    return place_assignment(at, chosen, keep_parameter_dtype=False)[0]


def test_ops_do_as_they_are_told() -> None:
    placement = place(linear="low", gelu="full")
    assert placement.ops["linear"].results == ("bfloat16",)
    assert placement.ops["gelu"].operands == ("float32",)
    assert placement.ops["exp"].operands == ("float32",)
    assert placement.ops["gelu"].why.endswith("; dear")


def test_sums_are_handed_back_in_full() -> None:
    placed = place(linear="accumulator", gelu="full").ops["linear"]
    assert (placed.precision, placed.results) == ("bfloat16", ("float32",))


@pytest.mark.parametrize(("side", "stored"), [("low", {"w"}), ("full", set())])
def test_a_weight_is_stored_low_where_nobody_reads_it_full(
    side: Assignment, stored: set[str]
) -> None:
    placement = place(linear=side, gelu="full")
    assert placement.low_weights == stored
    dtype = "bfloat16" if stored else "float32"
    assert placement.ops["turn"].results == (dtype,)


def test_a_pinned_op_says_why() -> None:
    at = situation_of(TEXT.replace("exp = exp", "exp = sin"))
    freedom = find_freedom(at, keep_parameter_dtype=False)
    chosen = Chosen(freedom, {"linear": "full"}, REASONS)
    placed = place_assignment(at, chosen, keep_parameter_dtype=False)[0].ops["gelu"]
    assert placed.why.startswith("exp needs an exact argument")
    assert placed.causes == ("exp",)
