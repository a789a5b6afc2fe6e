"""The casts of a placement: shared, repeated where they must be, folded, saturating."""

import pytest

from tests.plan_text import cast_lines, plan_of

WIDE = "-3.4028234663852886e+38"


def casts(
    text: str, *, policy: str = "bf16", keep_parameter_dtype: bool = False
) -> list[str]:
    """Return the casts of values other than the weight %w and the outputs."""
    lines = cast_lines(plan_of(text, policy, training=keep_parameter_dtype)).split("\n")
    return [
        line for line in lines if not line.startswith("%w:") and "output" not in line
    ]


def test_one_cast_serves_all_who_read_a_value() -> None:
    plan = plan_of("""
        %x: f32[4,8] input
        %w: f32[8,8] parameter
        one = linear(%x, %w) -> %a: f32[4,8]
        two = matmul(%x, %x) -> %b: f32[4,8]
        return %a, %b
    """)
    (cast,) = [cast for cast in plan.casts if cast.value == "x"]
    assert cast.uses == (("one", 0), ("two", 0), ("two", 1))
    assert cast.consumers == ("one", "two")
    assert cast.bytes == 4 * 8 * (4 + 2)


STALE = """
    %x: f32[4,8] input
    %w: f32[8,8] parameter
    copy = clone(%x) -> %h: f32[4,8]
    one = linear(%h, %w) -> %a: f32[4,8]
    view = view(%h) -> %v: f32[32] alias %h
    mul = mul(%{written}) -> %m: f32[4,8] alias %h
      | mutates=[0] literals=[-3.0]
    two = linear(%h, %w) -> %b: f32[4,8]
    three = linear(%h, %w) -> %c: f32[4,8]
    return %a, %b, %c
"""


@pytest.mark.parametrize("written", ["h", "v"])
def test_a_value_is_cast_again_after_it_was_written(written: str) -> None:
    assert casts(STALE.format(written=written)) == [
        "%h: f32[4,8] -> bf16 for one",
        "%h: f32[4,8] -> bf16 for two, three",
    ]


def test_a_write_to_another_storage_changes_nothing() -> None:
    text = (
        STALE.format(written="h")
        .replace("mul(%h)", "mul(%x)")
        .replace("%h\n      |", "%x\n      |")
    )
    assert casts(text) == ["%h: f32[4,8] -> bf16 for one, two, three"]


def test_a_body_has_its_own_casts() -> None:
    text = """
        %x: f32[4,8] input
        %w: f32[8,8] parameter
        one = linear(%x, %w) -> %a: f32[4,8]
        two = linear(%x, %w) -> %b: f32[4,8]
          | region="body"
        three = linear(%x, %w) -> %c: f32[4,8]
          | region="body"
        return %a, %b, %c
    """
    assert casts(text) == [
        "%x: f32[4,8] -> bf16 for one",
        "%x: f32[4,8] -> bf16 for two, three (in body)",
    ]
    lines = cast_lines(plan_of(text, training=True)).split("\n")
    assert [line for line in lines if line.startswith("%w")] == [
        "%w: f32[8,8] -> bf16 for one",
        "%w: f32[8,8] -> bf16 for two, three (in body)",
    ]


def test_an_output_gets_the_dtype_it_was_traced_with() -> None:
    plan = plan_of("""
        %x: f32[4,8] input
        %w: f32[8,8] parameter
        linear = linear(%x, %w) -> %h: f32[4,8]
        exp = exp(%h) -> %e: f32[4,8]
        return %h, %e, %h
    """)
    lines = cast_lines(plan).split("\n")
    assert lines[-1] == "%h: bf16[4,8] -> f32 for exp, output[0], output[2]"


MIXED = """
    %x: f32[4,8] input
    %w: f32[8,8] parameter
    {extra}linear = linear(%x, %w) -> %h: f32[4,8]
    {op}
    return %y
"""


@pytest.mark.parametrize(
    ("op", "line"),
    [
        ("sum = sum(%h) -> %y: f32[4]\n      | has_dtype_argument=true", "sum (dtype)"),
        (
            'add = add(%h, %x) -> %y: f32[4,8]\n      | operand_rule="promote"',
            "add (kernel)",
        ),
        ("add = add(%h, %x) -> %y: f32[4,8]", "add"),
        ("sum = sum(%h) -> %y: f32[4]", "sum"),
    ],
)
def test_a_cast_that_the_kernel_does_is_folded(op: str, line: str) -> None:
    found = casts(MIXED.format(op=op, extra=""))
    assert found[-1] == f"%h: bf16[4,8] -> f32 for {line}"


def test_a_kernel_that_promotes_only_operands_with_dimensions() -> None:
    """A full scalar does not bring the kernel to full, so the cast is made."""
    text = MIXED.format(
        extra="scale = sum(%x) -> %s: f32[]\n    ",
        op='mul = mul(%h, %s) -> %y: f32[4,8]\n      | operand_rule="promote"',
    )
    assert "%h: bf16[4,8] -> f32 for mul" in casts(text)


def test_a_kernel_that_computes_wider_than_the_placement_folds_nothing() -> None:
    """The product of two low values is wanted in full: both are cast."""
    text = MIXED.format(
        extra="",
        op='mul = mul(%h, %h) -> %q: f32[4,8]\n      | operand_rule="promote"\n'
        "    mean = mean(%q) -> %y: f32[]\n      | has_dtype_argument=true",
    )
    assert casts(text)[-1] == "%h: bf16[4,8] -> f32 for mul"


def test_a_weight_that_is_read_full_too_has_no_low_copy() -> None:
    text = MIXED.format(extra="", op="log = log(%w) -> %y: f32[8,8]")
    lines = cast_lines(plan_of(text)).split("\n")
    assert lines[-1] == "%w: f32[8,8] -> bf16 for linear"
    assert plan_of(text).casts[-1].is_weight
    assert cast_lines(plan_of(text, training=True)).split("\n") == lines


def test_a_stored_weight_lists_all_who_read_it() -> None:
    plan = plan_of(MIXED.format(extra="", op="two = linear(%h, %w) -> %y: f32[4,8]"))
    (cast,) = [cast for cast in plan.casts if cast.folding == "storage"]
    assert cast.uses == (("linear", 1), ("two", 1))
    assert (cast.is_weight, cast.folded, cast.bytes) == (True, True, 0)


MASK = """
    %x: f32[4,8] input
    %given: f32[4,8] input
    {mask}
    attend = scaled_dot_product_attention(%x, %x, %x, %mask) -> %y: f32[4,8]
      | masks=[3]
    return %y
"""


@pytest.mark.parametrize(
    "mask",
    [
        "pad = relu(%given) -> %mask: f32[4,8]",
        f"scale = mul(%given) -> %mask: f32[4,8]\n      | literals=[{WIDE}]",
    ],
)
def test_a_cast_of_a_mask_saturates(mask: str) -> None:
    assert casts(MASK.format(mask=mask)) == [
        "%x: f32[4,8] -> bf16 for attend",
        "%mask: f32[4,8] -> bf16 for attend (saturates)",
    ]


def test_a_cast_of_what_holds_the_least_number_saturates() -> None:
    text = f"""
        %keep: f32[4,8] input
        %w: f32[8,8] parameter
        bias = mul(%keep) -> %b: f32[4,8]
          | literals=[{WIDE}]
        linear = linear(%b, %w) -> %y: f32[4,8]
        exp = exp(%b) -> %e: f32[4,8]
        return %y, %e
    """
    assert casts(text) == ["%b: f32[4,8] -> bf16 for linear (saturates)"]


def test_infinity_is_not_made_finite() -> None:
    text = MASK.format(
        mask="full = full() -> %mask: f32[4,8]\n      | literals=[-Infinity]"
    )
    plan = plan_of(text.replace("      | masks=[3]\n", ""))
    assert not any(cast.saturate for cast in plan.casts)


def test_a_cast_has_the_place_of_its_first_reader() -> None:
    plan = plan_of("""
        %x: f32[4,8] input
        %w: f32[8,8] parameter
        one = linear(%x, %w) -> %a: f32[4,8]
          | path="body.0" source="model.py:7"
        two = linear(%x, %w) -> %b: f32[4,8]
          | path="body.1" source="model.py:8"
        return %a, %b
    """)
    (cast,) = [cast for cast in plan.casts if cast.value == "x"]
    assert (cast.path, cast.source) == ("body.0", "model.py:7")
    assert cast.why == "linear (allow) reads bfloat16"
    assert {c.why for c in plan.casts if c.value == "a"} == {
        "outputs keep the dtype they were traced with"
    }


def test_a_cast_knows_who_makes_its_value() -> None:
    plan = plan_of(MIXED.format(extra="", op="exp = exp(%h) -> %y: f32[4,8]"))
    assert {c.value: c.producer for c in plan.casts} == {
        "w": "",
        "x": "",
        "h": "linear",
    }


def test_a_policy_that_lowers_nothing_casts_nothing() -> None:
    text = MIXED.format(extra="", op="exp = exp(%h) -> %y: f32[4,8]")
    assert plan_of(text, "off").casts == ()


def test_a_promoted_operand_has_the_reason_of_its_promotion() -> None:
    plan = plan_of(
        """
        %x: f32[4] input
        %d: f64[4] input
        add = add(%x, %d) -> %y: f64[4]
          | reads=["float64", "float64"]
        return %y
        """,
        "promote",
    )
    (cast,) = plan.casts
    assert cast.why == "float32 and float64 promote to float64"
