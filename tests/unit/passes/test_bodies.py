"""Loops, branches and rules: how precision passes into and out of bodies."""

from tests.plan_text import assert_plan, plan_of

LOOP = """
    %x: f32[5,4,8] input
    %h0: f32[4,8] input
    %w: f32[8,8] parameter
    loop.in0 = enter(%w) -> %u: f32[8,8]
      | region="loop"
    loop.in1 = carry(%h0) -> %h: f32[4,8]
      | region="loop"
    loop.in2 = enter(%x) -> %s: f32[4,8]
      | region="loop"
    dot = matmul(%s, %u) -> %d: f32[4,8]
      | region="loop" accumulates=true
    add = add(%d, %h) -> %n: f32[4,8]
      | region="loop"
    out = matmul(%n, %u) -> %o: f32[4,8]
      | region="loop" accumulates=true
    tanh = tanh(%o) -> %t: f32[4,8]
      | region="loop"
    loop.out0 = carry(%n) -> %last: f32[4,8]
    loop.out1 = leave(%t) -> %all: f32[5,4,8]
    final = matmul(%all, %w) -> %y: f32[5,4,8]
      | accumulates=true
    return %last, %y
"""


def test_a_loop_keeps_its_carry_and_casts_inside() -> None:
    assert_plan(
        plan_of(LOOP, training=True),
        """
        loop.in0: follow f32
        loop.in1: keep f32
        loop.in2: follow f32
        dot: allow bf16
        add: promote f32
        out: allow bf16
        tanh: promote bf16
        loop.out0: keep f32
        loop.out1: follow bf16
        final: allow bf16
        """,
        """
        %s: f32[4,8] -> bf16 for dot (in loop)
        %u: f32[8,8] -> bf16 for dot, out (in loop)
        %n: f32[4,8] -> bf16 for out (in loop)
        %w: f32[8,8] -> bf16 for final
        """,
    )


def test_a_branch_gives_the_widest_of_what_its_bodies_give() -> None:
    text = """
        %x: f32[4,8] input
        %w: f32[8,8] parameter
        cond.0.in0 = enter(%x) -> %a: f32[4,8]
          | region="cond.0"
        dot = matmul(%a, %w) -> %b: f32[4,8]
          | region="cond.0"
        cond.1.in0 = enter(%x) -> %c: f32[4,8]
          | region="cond.1"
        {} = {}(%c) -> %d: f32[4,8]
          | region="cond.1"
        cond.out0 = leave(%b, %d) -> %y: f32[4,8]
        last = matmul(%y, %w) -> %z: f32[4,8]
        return %z
    """
    both_low = plan_of(text.format("dot2", "matmul").replace("(%c)", "(%c, %w)"))
    assert both_low.by_op["cond.out0"].results == ("bfloat16",)
    mixed = plan_of(text.format("exp", "exp"))
    assert mixed.by_op["cond.out0"].operands == ("float32", "float32")


def test_a_rule_keeps_the_dtypes_it_was_written_for() -> None:
    plan = plan_of("""
        %x: f32[4,8] input
        %w: f32[8,8] parameter
        dot = matmul(%x, %w) -> %h: f32[4,8]
        rule.in0 = boundary(%h) -> %a: f32[4,8]
          | region="rule"
        inner = matmul(%a, %w) -> %b: f32[4,8]
          | region="rule"
        rule.out0 = boundary(%b) -> %y: f32[4,8]
        return %y
    """)
    assert plan.by_op["rule.in0"].operands == ("float32",)
    assert plan.by_op["inner"].precision == "bfloat16"
    assert plan.by_op["rule.out0"].operands == ("float32",)
    assert plan.by_op["rule.in0"].why.startswith("a custom rule")


def test_a_policy_has_no_word_on_how_values_pass() -> None:
    overrides = [{"op": "carry", "class": "allow"}]
    plan = plan_of(LOOP, overrides=overrides, training=True)
    assert plan.by_op["loop.out0"].op_class == "keep"
    assert [w.partition(" {")[0] for w in plan.warnings] == [
        "unused rule: overrides[0]"
    ]
