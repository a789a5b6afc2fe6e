"""What is only known after a walk: storages written in full, sums read in full."""

from tests.plan_text import assert_plan, decision_lines, plan_of

WRITES = """
    %x: f32[4,8] input
    %w: f32[8,8] parameter
    linear = linear(%x, %w) -> %h: f32[4,8]
    view = view(%h) -> %v: f32[32] alias %h
    add = add_({target}) -> %a: f32[4,8] alias %h
      | mutates=[0]
    last = linear(%h, %w) -> %y: f32[4,8]
    return %y
"""


def test_a_storage_that_is_written_in_full_is_full_from_its_start() -> None:
    text = WRITES.format(target="%v, %x").replace("add_(", "add(")
    assert_plan(
        plan_of(text),
        """
        linear: allow bf16
        view: follow f32
        add: promote f32
        last: allow bf16
        """,
        """
        %w: f32[8,8] -> bf16 for linear, last (storage)
        %x: f32[4,8] -> bf16 for linear
        %h: bf16[4,8] -> f32 for view, last
        %h: f32[4,8] -> bf16 for last
        %y: bf16[4,8] -> f32 for output[0]
        """,
    )


def test_a_storage_that_is_written_low_stays_low() -> None:
    text = WRITES.format(target="%v, %h").replace("add_(", "add(")
    plan = plan_of(text)
    assert decision_lines(plan) == (
        "linear: allow bf16\nview: follow bf16\nadd: promote bf16\nlast: allow bf16"
    )


def test_a_kept_op_that_writes_pins_what_it_writes() -> None:
    text = """
        %x: f32[4,8] input
        %d: f64[4,8] input
        %w: f32[8,8] parameter
        linear = linear(%x, %w) -> %h: f32[4,8]
        scan = scan(%d, %h) -> %s: f64[4,8]
          | mutates=[1]
        last = linear(%h, %w) -> %y: f32[4,8]
        return %y
    """
    plan = plan_of(text)
    assert plan.by_op["scan"].operands == ("float64", "float32")
    assert ("h", "float32") in [(c.value, c.to_dtype) for c in plan.casts]


def test_an_input_that_is_written_keeps_its_dtype() -> None:
    plan = plan_of("""
        %x: f32[4,8] input
        %w: f32[8,8] parameter
        linear = linear(%x, %w) -> %h: f32[4,8]
        add = add(%x, %h) -> %a: f32[4,8] alias %x
          | mutates=[0]
        return %x
    """)
    assert plan.by_op["add"].results == ("float32",)
    assert plan.by_op["add"].operands == ("float32", "float32")
