"""Biases of contractions and accumulators: text before, decisions after."""

import pytest

from amprewrite.plan import Plan
from tests.plan_text import plan_of

DOT = """
    %x: f32[4,8] input
    %w: f32[8,16] parameter
    %b: f32[16] parameter
    %c: f32[4,16] input
    dot = matmul(%x, %w) -> %h: f32[4,16]
      | accumulates=true
"""


def reads_and_gives(plan: Plan, op: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    found = plan.by_op[op]
    return found.operands, found.results


def test_a_bias_is_added_to_the_accumulator_and_rounded_once() -> None:
    plan = plan_of(f"""{DOT}
    spread = expand(%b) -> %s: f32[4,16]
    add = add(%h, %s) -> %a: f32[4,16]
    next = matmul(%a, %w) -> %y: f32[4,16]
      | accumulates=true
    return %y
    """)
    full, low = "float32", "bfloat16"
    assert reads_and_gives(plan, "dot") == ((low, low), (full,))
    assert reads_and_gives(plan, "add") == ((full, full), (low,))
    assert reads_and_gives(plan, "next") == ((low, low), (full,))
    assert plan.by_op["add"].why == "the bias of dot: added in full, rounded once"
    assert [c.value for c in plan.runtime_casts] == ["x"]


@pytest.mark.parametrize("batch", ["1", "n"])
def test_a_bias_is_one_for_a_batch_of_one_and_a_symbolic_one(batch: str) -> None:
    plan = plan_of(f"""
    %x: f32[{batch},8] input
    %w: f32[8,16] parameter
    %b: f32[16] parameter
    dot = matmul(%x, %w) -> %h: f32[{batch},16]
      | accumulates=true
    spread = expand(%b) -> %s: f32[{batch},16]
    add = add(%h, %s) -> %a: f32[{batch},16]
    next = matmul(%a, %w) -> %y: f32[{batch},8]
    return %y
    """)
    assert plan.by_op["add"].why == "the bias of dot: added in full, rounded once"


@pytest.mark.parametrize(
    "added",
    [
        "add = add(%h, %c) -> %a: f32[4,16]",  # as large as the result: no bias
        "two = mul(%h, %h) -> %a: f32[4,16]\n    add = add(%h, %b) -> %d: f32[4,16]",
        "mul = mul(%h, %b) -> %a: f32[4,16]",
    ],
)
def test_what_is_no_bias_is_promoted(added: str) -> None:
    plan = plan_of(f"""{DOT}
    {added}
    next = matmul(%a, %w) -> %y: f32[4,16]
    return %y
    """)
    assert not any("the bias of" in d.why for d in plan.decisions)


def test_a_bias_below_a_denied_op_stays_full() -> None:
    plan = plan_of(f"""{DOT}
    add = add(%h, %b) -> %a: f32[4,16]
    exp = exp(%a) -> %y: f32[4,16]
    return %y
    """)
    assert reads_and_gives(plan, "add")[1] == ("float32",)
    assert plan.by_op["add"].causes == ("exp",)


def test_an_accumulator_is_handed_back_where_all_read_it_in_full() -> None:
    plan = plan_of(f"""{DOT}
    view = reshape(%h) -> %v: f32[64]
    exp = exp(%v) -> %y: f32[64]
    return %y
    """)
    assert reads_and_gives(plan, "dot")[1] == ("float32",)
    assert "hands over its accumulator" in plan.by_op["dot"].why
    assert reads_and_gives(plan, "view")[1] == ("float32",)
    assert [c.value for c in plan.runtime_casts] == ["x"]


def test_an_accumulator_is_rounded_where_one_reads_it_low() -> None:
    plan = plan_of(f"""{DOT}
    exp = exp(%h) -> %y: f32[4,16]
    next = matmul(%h, %w) -> %z: f32[4,16]
    return %y, %z
    """)
    assert reads_and_gives(plan, "dot")[1] == ("bfloat16",)


def test_a_kernel_that_cannot_hand_it_back_rounds() -> None:
    plan = plan_of(DOT.replace("      | accumulates=true\n", "") + "    return %h\n")
    assert reads_and_gives(plan, "dot")[1] == ("bfloat16",)


def test_a_cast_to_full_reads_the_accumulator() -> None:
    plan = plan_of(f"""{DOT}
    up = cast(%h) -> %u: f32[4,16]
      | dtype_argument="float32" chosen="pinned" operand_rule="any"
    mul = mul(%u, %u) -> %y: f32[4,16]
    return %y
    """)
    full, low = "float32", "bfloat16"
    assert reads_and_gives(plan, "dot") == ((low, low), (full,))
    assert [c.value for c in plan.runtime_casts] == ["x"]
