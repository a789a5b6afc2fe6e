"""Placement ``promote``: text before, decisions and casts after."""

import dataclasses

import pytest

from amprewrite.policy import load_policy
from tests.plan_text import assert_plan, decision_lines, plan_of


def test_a_deny_op_computes_in_full() -> None:
    plan = plan_of("""
        %x: f32[4,8] input
        %w: f32[8,8] parameter
        linear = linear(%x, %w) -> %h: f32[4,8]
        softmax = softmax(%h) -> %p: f32[4,8]
        return %p
    """)
    assert_plan(
        plan,
        """
        linear: allow bf16
        softmax: deny f32
        """,
        """
        %w: f32[8,8] -> bf16 for linear (storage)
        %x: f32[4,8] -> bf16 for linear
        %h: bf16[4,8] -> f32 for softmax
        """,
    )


def test_a_promote_op_takes_the_widest_of_its_operands() -> None:
    plan = plan_of("""
        %x: f32[4,8] input
        %w: f32[8,8] parameter
        one = linear(%x, %w) -> %a: f32[4,8]
        two = linear(%x, %w) -> %b: f32[4,8]
        low = add(%a, %b) -> %c: f32[4,8]
        wide = add(%c, %x) -> %d: f32[4,8]
        last = linear(%d, %w) -> %y: f32[4,8]
        return %y
    """)
    assert_plan(
        plan,
        """
        one: allow bf16
        two: allow bf16
        low: promote bf16
        wide: promote f32
        last: allow bf16
        """,
        """
        %w: f32[8,8] -> bf16 for one, two, last (storage)
        %x: f32[4,8] -> bf16 for one, two
        %c: bf16[4,8] -> f32 for wide
        %d: f32[4,8] -> bf16 for last
        %y: bf16[4,8] -> f32 for output[0]
        """,
    )
    assert plan.by_op["wide"].why == "%x is float32, and operands promote to the widest"


def test_a_follow_op_stores_what_it_is_given() -> None:
    plan = plan_of("""
        %x: f32[4,8] input
        %w: f32[8,8] parameter
        before = relu(%x) -> %r: f32[4,8]
        linear = linear(%r, %w) -> %h: f32[4,8]
        after = view(%h) -> %v: f32[32] alias %h
        return %v
    """)
    assert_plan(
        plan,
        """
        before: follow f32
        linear: allow bf16
        after: follow bf16
        """,
        """
        %w: f32[8,8] -> bf16 for linear (storage)
        %r: f32[4,8] -> bf16 for linear
        %v: bf16[32] -> f32 for output[0]
        """,
    )
    assert plan.by_op["after"].causes == ("linear",)


def test_an_accumulate_op_is_stored_as_it_is_given() -> None:
    plan = plan_of("""
        %x: f32[4,8,9] input
        %w: f32[8,8] parameter
        full = avg_pool1d(%x) -> %a: f32[4,8,3]
        linear = linear(%a, %w) -> %h: f32[4,8,3]
        low = avg_pool1d(%h) -> %b: f32[4,8,1]
        return %b
    """)
    assert_plan(
        plan,
        """
        full: accumulate f32
        linear: allow bf16
        low: accumulate bf16
        """,
        """
        %w: f32[8,8] -> bf16 for linear (storage)
        %a: f32[4,8,3] -> bf16 for linear
        %b: bf16[4,8,1] -> f32 for output[0]
        """,
    )


def test_a_kept_op_reads_what_it_was_traced_with() -> None:
    plan = plan_of("""
        %x: f32[4,8] input
        %w: f32[8,8] parameter
        linear = linear(%x, %w) -> %h: f32[4,8]
        sort = sort(%h) -> %v: f32[4,8]; %i: i64[4,8]
        zeros = zeros_like(%h) -> %z: f32[4,8]
          | operand_rule="any"
        return %v, %i, %z
    """)
    assert plan.by_op["sort"].operands == ("float32",)
    assert plan.by_op["sort"].results == ("float32", "int64")
    assert plan.by_op["zeros"].operands == ("bfloat16",), "it reads the shape alone"


def test_a_square_under_a_mean_is_computed_in_full() -> None:
    """The variance by ``mean(x*x) - mean(x)**2``, after a linear layer."""
    plan = plan_of("""
        %x: f32[4,8] input
        %w: f32[8,8] parameter
        linear = linear(%x, %w) -> %h: f32[4,8]
        square = mul(%h, %h) -> %q: f32[4,8]
        mean_of_square = mean(%q) -> %mq: f32[4,1]
        mean = mean(%h) -> %m: f32[4,1]
        square_of_mean = mul(%m, %m) -> %qm: f32[4,1]
        variance = sub(%mq, %qm) -> %v: f32[4,1]
        rsqrt = rsqrt(%v) -> %r: f32[4,1]
        norm = mul(%h, %r) -> %n: f32[4,8]
        last = linear(%n, %w) -> %y: f32[4,8]
        return %y
    """)
    assert_plan(
        plan,
        """
        linear: allow bf16
        square: promote f32
        mean_of_square: deny f32
        mean: deny f32
        square_of_mean: promote f32
        variance: promote f32
        rsqrt: deny f32
        norm: promote f32
        last: allow bf16
        """,
        """
        %w: f32[8,8] -> bf16 for linear, last (storage)
        %x: f32[4,8] -> bf16 for linear
        %h: bf16[4,8] -> f32 for square, mean, norm
        %n: f32[4,8] -> bf16 for last
        %y: bf16[4,8] -> f32 for output[0]
        """,
    )
    assert plan.by_op["square"].causes == ("mean_of_square",)
    assert plan.by_op["square"].why == "mean_of_square wants full precision"


def test_without_demand_the_square_is_rounded_first() -> None:
    policy = dataclasses.replace(load_policy("bf16"), demand=False)
    text = """
        %x: f32[4,8] input
        %w: f32[8,8] parameter
        linear = linear(%x, %w) -> %h: f32[4,8]
        square = mul(%h, %h) -> %q: f32[4,8]
        mean = mean(%q) -> %m: f32[4,1]
        return %m
    """
    assert "square: promote bf16" in decision_lines(plan_of(text, policy))
    assert "square: promote f32" in decision_lines(plan_of(text))


ANGLES = """
    %x: f32[4,8] input
    %w: f32[8,8] parameter
    linear = linear(%x, %w) -> %h: f32[4,8]
    {extra}move = transpose(%h) -> %t: f32[8,4] alias %h
    {last}(%t) -> %s: f32[8,4]
    return %s
"""


@pytest.mark.parametrize("last", ["sin = sin", "floor = floor"])
def test_what_makes_an_exact_argument_is_never_lowered(last: str) -> None:
    plan = plan_of(ANGLES.format(extra="", last=last))
    assert decision_lines(plan).startswith("linear: allow f32\nmove: follow f32\n")
    assert plan.casts == ()
    op = last.partition(" = ")[0]
    assert plan.by_op["linear"].causes == ("move", op)
    assert "needs an exact argument" in plan.by_op["linear"].why


def test_an_exact_argument_reaches_back_through_a_mean_of_neighbours() -> None:
    extra = "pool = avg_pool1d(%h) -> %p: f32[4,8]\n    "
    text = ANGLES.format(extra=extra, last="sin = sin").replace("pose(%h)", "pose(%p)")
    plan = plan_of(text)
    assert decision_lines(plan).startswith("linear: allow f32\npool: accumulate f32\n")
    assert plan.casts == ()


def test_what_makes_an_exact_argument_stays_full_for_its_other_readers() -> None:
    other = "other = linear(%h, %w) -> %o: f32[4,8]\n    "
    plan = plan_of(ANGLES.format(extra=other, last="sin = sin"))
    assert_plan(
        plan,
        """
        linear: allow f32
        other: allow bf16
        move: follow f32
        sin: deny f32
        """,
        """
        %h: f32[4,8] -> bf16 for other
        %w: f32[8,8] -> bf16 for other
        """,
    )


OUTER = """
    %x: f32[1,9,1] input
    %f: f32[1,4] buffer
    angles = matmul(%x, %f) -> %a: f32[1,9,4]
      | contracted=1
    return %a
"""


def test_an_outer_product_is_never_lowered() -> None:
    plan = plan_of(OUTER)
    assert_plan(plan, "angles: deny f32", "")
    assert "outer product" in plan.by_op["angles"].why


SCALAR = """
    %x: f32[4,8] input
    %w: f32[8,8] parameter
    %two: f32[] {kind}
    linear = linear(%x, %w) -> %h: f32[4,8]
    mul = mul(%h, %two) -> %m: f32[4,8]
    last = linear(%m, %w) -> %y: f32[4,8]
    return %y
"""


@pytest.mark.parametrize(
    ("kind", "precision"),
    [("constant", "bfloat16"), ("input", "float32"), ("parameter", "float32")],
)
def test_a_scalar_literal_adapts_to_the_other_operand(
    kind: str, precision: str
) -> None:
    assert plan_of(SCALAR.format(kind=kind)).by_op["mul"].precision == precision


NUMBER = """
    %x: f32[4,8] input
    %w: f32[8,8] parameter
    linear = linear(%x, %w) -> %h: f32[4,8]
    add = add(%h) -> %a: f32[4,8]
      | literals=[{number}]
    last = linear(%a, %w) -> %y: f32[4,8]
    return %y
"""


@pytest.mark.parametrize(
    ("policy", "number", "precision"),
    [
        ("fp16", "1e-08", "float32"),
        ("fp16", "1000000000.0", "float32"),
        ("fp16", "0.5", "float16"),
        ("fp16", "-Infinity", "float16"),
        ("bf16", "1e-08", "bfloat16"),
        ("bf16", "1000000000.0", "bfloat16"),
    ],
)
def test_a_number_that_low_cannot_hold_keeps_the_op_full(
    policy: str, number: str, precision: str
) -> None:
    decision = plan_of(NUMBER.format(number=number), policy).by_op["add"]
    assert decision.precision == precision
    if precision == "float32":
        assert decision.why == f"the number {float(number)!r} does not survive float16"


BIAS = """
    %x: f32[4,8] input
    %w: f32[8,8] parameter
    %b: f32[8] parameter
    matmul = matmul(%x, %w) -> %h: f32[4,8]
    add = add(%h, %b) -> %a: f32[4,8]
      | operand_rule="promote"
    last = matmul(%a, %w) -> %y: f32[4,8]
    return %y
"""


@pytest.mark.parametrize(
    ("switch", "precision", "casts"),
    [
        (True, "bfloat16", {"%w", "%b", "%x", "%y"}),
        (False, "float32", {"%w", "%x", "%h", "%a", "%y"}),
    ],
)
def test_a_bias_adapts_if_the_policy_says_so(
    *, switch: bool, precision: str, casts: set[str]
) -> None:
    policy = dataclasses.replace(load_policy("bf16"), weak_parameters=switch)
    plan = plan_of(BIAS, policy)
    assert plan.by_op["add"].precision == precision
    assert {f"%{cast.value}" for cast in plan.casts} == casts


def test_a_parameter_of_the_rank_of_the_result_never_adapts() -> None:
    policy = dataclasses.replace(load_policy("bf16"), weak_parameters=True)
    plan = plan_of(BIAS.replace("%b: f32[8]", "%b: f32[4,8]"), policy)
    assert plan.by_op["add"].precision == "float32"


def test_a_leading_operand_decides_and_others_stay_as_they_are() -> None:
    plan = plan_of("""
        %x: f32[4,8] input
        %w: f32[8,8] parameter
        %scale: f32[8] parameter
        linear = linear(%x, %w) -> %h: f32[4,8]
        norm = batch_norm_inference(%h, %scale) -> %n: f32[4,8]
          | operand_rule="lead"
        return %n
    """)
    assert plan.by_op["norm"].operands == ("bfloat16", "float32")
    assert not [cast for cast in plan.casts if cast.value == "scale"]


def test_an_allow_op_that_writes_to_a_full_value_runs_in_full() -> None:
    plan = plan_of("""
        %x: f32[4,8] input
        %a: f32[4,8] input
        addmm = addmm(%a, %x, %x) -> %r: f32[4,8] alias %a
          | mutates=[0]
        return %a
    """)
    assert_plan(plan, "addmm: allow f32", "")
    assert plan.by_op["addmm"].why == "writes in place to a value stored in float32"


def test_a_cast_of_the_user_makes_what_it_names() -> None:
    plan = plan_of("""
        %x: f32[4,8] input
        %w: f32[8,8] parameter
        linear = linear(%x, %w) -> %h: f32[4,8]
        guard = cast(%h) -> %g: f32[4,8]
          | dtype_argument="float32" operand_rule="any"
        tanh = tanh(%g) -> %t: f32[4,8]
        wide = cast(%t) -> %d: f64[4,8]
          | dtype_argument="float64" operand_rule="any"
        return %d
    """)
    assert decision_lines(plan) == (
        "linear: allow bf16\nguard: keep f32\ntanh: promote f32\nwide: keep f64"
    )
    assert plan.by_op["guard"].operands == ("bfloat16",)


def test_an_op_that_makes_a_tensor_from_nothing_may_be_put_to_any_class() -> None:
    for name in ("allow", "deny", "accumulate", "promote", "follow", "keep"):
        plan = plan_of(
            "made = randn() -> %r: f32[4]\nreturn %r",
            overrides=[{"op": "randn", "class": name}],
        )
        made = "bfloat16" if name == "allow" else "float32"
        assert plan.by_op["made"].results == (made,), name
