"""Prices: multiplications, and the speed that is lost in full."""

from dataclasses import replace

import pytest

from amprewrite.errors import UnsupportedError
from amprewrite.passes.cost.cost_model import (
    COMPILED,
    EAGER,
    Point,
    Timings,
    cost_model,
    kernel_overhead,
    lost_speed,
    low_overhead,
    multiplications,
)
from tests.placement_problem import graph_of

TEXT = """
    %x: f32[4,8] input
    %w: f32[8,8] parameter
    %t: f32[100,8] parameter
    %i: i64[4] input
    rows = embedding(%t, %i) -> %e: f32[4,8]
    linear = linear(%x, %w) -> %h: f32[4,8]
      | contracted=8
    einsum = einsum(%h, %w) -> %k: f32[4,8]
    attention = scaled_dot_product_attention(%k, %h, %h) -> %a: f32[4,8]
    view = view(%a) -> %v: f32[32] alias %a
    gelu = gelu(%v) -> %g: f32[32]
    exp = exp(%g) -> %y: f32[32]
    return %y
"""
GRAPH = graph_of(TEXT)


@pytest.mark.parametrize(
    ("op", "count"), [("linear", 4 * 8 * 8), ("einsum", 4 * 8 * 8), ("attention", 256)]
)
def test_multiplications_are_known_or_guessed(op: str, count: int) -> None:
    assert multiplications(GRAPH, GRAPH.op_by_name[op]) == count


def test_running_full_loses_the_speed_of_low() -> None:
    lost = lost_speed(GRAPH, GRAPH.op_by_name["linear"], EAGER)
    assert lost == round(256 * EAGER.mac_bytes * (1 - 1 / EAGER.speedup))


def test_measured_times_decide_what_is_lost() -> None:
    """4 x 8 x 8, at 5 bytes full and 3 low, 2 of which the 128 elements save."""
    point = Point(4, 256, full=5.0, low=3.0)
    model = replace(EAGER, timings=Timings({"product": (point,)}, saved=2))
    linear = GRAPH.op_by_name["linear"]
    assert lost_speed(GRAPH, linear, model) == 256 * 2 - 2 * (32 + 64 + 32)
    slow = replace(EAGER, timings=Timings({"product": (replace(point, low=6.0),)}, 2))
    assert lost_speed(GRAPH, linear, slow) == -256 - 256


def test_other_ops_are_dearer_low_where_that_was_measured() -> None:
    point = Point(4, 256, full=5.0, low=3.0)
    dearer = {"gelu": 1.5, "view": 9.0}
    model = replace(EAGER, timings=Timings({"product": (point,)}, 2, dearer))
    gelu, view = GRAPH.op_by_name["gelu"], GRAPH.op_by_name["view"]
    assert low_overhead(GRAPH, gelu, model) == 64 * 1.5
    assert kernel_overhead(GRAPH, gelu, model) == 32 * 2
    assert low_overhead(GRAPH, gelu, EAGER) == kernel_overhead(GRAPH, gelu, EAGER) == 0
    assert low_overhead(GRAPH, view, model) == kernel_overhead(GRAPH, view, model) == 0


def test_a_model_is_found_by_its_target() -> None:
    assert cost_model("compiled") is COMPILED
    with pytest.raises(
        UnsupportedError, match="unknown target 'fast'; want eager or compiled"
    ):
        cost_model("fast")
