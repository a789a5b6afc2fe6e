"""What a plan costs in bytes."""

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
