"""What a plan costs in bytes."""

from dataclasses import replace

import pytest

from amprewrite.passes.cost.cost import Fusion, speed_cost
from amprewrite.passes.cost.cost_model import COMPILED, EAGER, CostModel, Point, Timings
from amprewrite.plan.hardware import Kernels
from tests.placement_problem import situation_of
from tests.plan_text import plan_of

TEXT = """
    %x: f32[4,8] input
    %w: f32[8,8] parameter
    linear = linear(%x, %w) -> %h: f32[4,8]
    view = view(%h) -> %v: f32[32] alias %h
    exp = exp(%v) -> %y: f32[32]
    return %y
"""


def test_casts_count_what_they_read_and_write() -> None:
    cost = plan_of(TEXT).cost
    assert (cost.casts, cost.cast_elements) == (2, 64)
    assert cost.cast_bytes == 2 * 32 * (4 + 2)


def test_folded_casts_cost_nothing() -> None:
    plan = plan_of(TEXT)
    assert sum(cast.folded for cast in plan.casts) == 1
    assert plan.cost.cast_bytes == sum(cast.bytes for cast in plan.casts)


def test_ops_count_their_operands_and_results_and_views_nothing() -> None:
    linear, exp = (32 + 64 + 32) * 2, (32 + 32) * 4
    assert plan_of(TEXT).cost.op_bytes == linear + exp
    assert plan_of(TEXT, "off").cost.op_bytes == 2 * linear + exp


def test_an_op_that_writes_to_its_operand_is_no_view() -> None:
    text = """
        %x: f32[4] input
        add = add(%x, %x) -> %a: f32[4] alias %x
          | mutates=[0]
        return
    """
    assert plan_of(text).cost.op_bytes == 3 * 16


def test_the_total_is_the_sum() -> None:
    cost = plan_of(TEXT).cost
    assert cost.total_bytes == cost.cast_bytes + cost.op_bytes + cost.overhead_bytes
    assert cost.lower_bound is None


def test_symbolic_extents_count_as_one() -> None:
    cost = plan_of(TEXT.replace("[4,8]", "[s0,8]").replace("[32]", "[8*s0]")).cost
    assert cost.cast_elements == 8 + 1


SPEEDS = """
    %x: f32[8,8] input
    %w: f32[8,8] parameter
    %z: bf16[8,8] input
    linear = linear(%x, %w) -> %h: f32[8,8]
      | contracted=8
    traced = linear(%z, %z) -> %y: bf16[8,8]
      | contracted=8
    gelu = gelu(%h) -> %g: f32[8,8]
    turn = transpose(%w) -> %u: f32[8,8]
    copy = cat(%g) -> %c: f32[8,8]
    return %c
"""
MEASURED = Timings({"product": (Point(8, 512, 1.0, 3.0),)}, 2, {"gelu": 1.5})


def speeds(model: CostModel) -> dict[str, tuple[int, int]]:
    at = situation_of(SPEEDS)
    fusion = Fusion(at.graph, at.classes, model)
    return {op.name: speed_cost(at, op, fusion) for op in at.graph.ops}


def test_full_contractions_lose_speed_by_the_default_prices() -> None:
    lost = round(512 * 0.2 * 7 / 8)
    assert speeds(EAGER) == {
        "linear": (lost, 0), "traced": (0, 0),
        "gelu": (0, 0), "turn": (0, 0), "copy": (0, 0),
    }  # fmt: skip


def test_what_is_slower_low_is_charged_where_it_is_low() -> None:
    """But not what was traced in low: it has no choice."""
    lost = 512 * 2 + 3 * 64 * 2
    assert speeds(replace(EAGER, timings=MEASURED)) == {
        "linear": (0, lost), "traced": (0, 0),
        "gelu": (0, 192), "turn": (0, 0), "copy": (0, 0),
    }  # fmt: skip


def test_nothing_is_saved_by_low_arithmetic_in_a_generated_kernel() -> None:
    """What moves a weight is what the weight is."""
    found = speeds(replace(COMPILED, timings=MEASURED))
    assert (found["gelu"], found["copy"], found["turn"]) == ((0, 128), (0, 128), (0, 0))


@pytest.mark.parametrize("speedup", [0.5, 0.1])
def test_a_constant_below_one_is_slower_low_too(speedup: float) -> None:
    lost = round(512 * 0.2 * (1 / speedup - 1))
    assert speeds(replace(EAGER, speedup=speedup))["linear"] == (0, lost)


LOOP = """
    %x: f32[4,8] input
    %w: f32[8,8] parameter
    loop.in0 = enter(%w) -> %u: f32[8,8]
      | region="loop"
    loop.in1 = carry(%x) -> %h: f32[4,8]
      | region="loop"
    dot = matmul(%h, %u) -> %d: f32[4,8]
      | region="loop" trips=1
    loop.out0 = carry(%d) -> %y: f32[4,8]
    return %y
"""


def turning(trips: int) -> str:
    text = LOOP.replace("trips=1", f"trips={trips}")
    return text.replace(
        "f32[4,8]\n    return", f"f32[4,8]\n      | trips={trips}\n    return"
    )


def test_a_body_costs_what_all_its_turns_cost() -> None:
    once, often = (plan_of(turning(n), training=True).cost for n in (1, 7))
    moved = (32 + 64 + 32) * 2
    assert once.op_bytes == moved  # what passes in and out moves nothing
    casts = (32 + 64 + 32) * (4 + 2)
    assert once.cast_bytes == casts
    assert (often.op_bytes, often.cast_bytes) == (7 * moved, 7 * casts)
    assert often.cast_elements == 7 * (32 + 64 + 32)
    assert often.overhead_bytes == 7 * once.overhead_bytes
    assert often.casts == once.casts == 3


def test_a_cast_says_how_often_it_runs() -> None:
    trips = {
        cast.value: cast.trips for cast in plan_of(turning(7), training=True).casts
    }
    assert trips == {"h": 7, "u": 7, "d": 7}


def test_a_contraction_that_runs_full_loses_its_speed_at_each_turn() -> None:
    def overhead(trips: int) -> int:
        exact = "carry(%s) -> %y"
        text = turning(trips).replace("carry(%d) -> %y", exact)
        sine = f"""sin = sin(%d) -> %s: f32[4,8]
      | region="loop" trips={trips}
    loop.out0"""
        return plan_of(text.replace("loop.out0", sine)).cost.overhead_bytes

    assert overhead(7) == 7 * overhead(1) > 0


CHAIN = """
    %x: f32[8,8] input
    %w: f32[8,8] parameter
    gelu = gelu(%x) -> %g: f32[8,8]
    linear = linear(%g, %w) -> %h: f32[8,8]
      | contracted=8 accumulates=true
    relu = relu(%h) -> %r: f32[8,8]
    again = linear(%h, %r) -> %y: f32[8,8]
      | contracted=8
    return %y
"""


def test_a_compiler_moves_only_what_reaches_memory() -> None:
    """Read x, write g low, and so on; a cast is a pass, or in a kernel free."""
    plan = plan_of(CHAIN, training=True, model=COMPILED)
    low, full = 64 * 2, 64 * 4
    linear, relu, again = 3 * low, low + low, 3 * low
    assert plan.cost.op_bytes == full + low + linear + relu + again
    assert {c.value: c.bytes for c in plan.runtime_casts} == {
        "g": 0, "w": low + full, "y": low + full,
    }  # fmt: skip
    assert plan.cost.cast_bytes == sum(cast.bytes for cast in plan.casts)


def test_the_rounding_of_an_accumulator_is_part_of_its_op() -> None:
    """Kernels read it in full; for a library it is rounded in a pass of its own."""
    sums = replace(COMPILED, kernels=Kernels(accumulators=True))
    plain = plan_of(CHAIN, training=True, model=COMPILED).cost.op_bytes
    found = plan_of(CHAIN, training=True, model=sums).cost.op_bytes
    low, full = 64 * 2, 64 * 4
    assert found - plain == (full - low) + (full + low) + (full - low)
