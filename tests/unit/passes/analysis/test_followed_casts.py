"""Casts that follow a value's dtype: text before, decisions after."""

from amprewrite.plan import Plan
from tests.plan_text import plan_of

LINEAR = """
    %x: f32[4,8] input
    %w: f32[8,8] parameter
    linear = linear(%x, %w) -> %h: f32[4,8]
"""
PINNED = '| dtype_argument="float32" chosen="pinned" operand_rule="any"'
FOLLOWS = '| dtype_argument="float32" chosen="follows" operand_rule="any"'


def cast_of(plan: Plan, op: str = "back") -> tuple[str, str]:
    found = plan.by_op[op]
    return found.op_class, found.precision


def test_a_cast_goes_back_to_the_dtype_that_entered() -> None:
    plan = plan_of(f"""{LINEAR}
    up = cast(%h) -> %u: f32[4,8]
      {PINNED}
    mul = mul(%u, %u) -> %m: f32[4,8]
    back = cast(%m) -> %b: f32[4,8]
      {FOLLOWS}
    next = linear(%b, %w) -> %y: f32[4,8]
    return %y
    """)
    assert cast_of(plan, "up") == ("keep", "float32")
    assert cast_of(plan, "mul") == ("promote", "float32")
    assert cast_of(plan) == ("follow", "bfloat16")
    assert plan.by_op["back"].why == "its dtype follows that of %h, which is bfloat16"
    assert [(c.value, c.to_dtype) for c in plan.runtime_casts] == [
        ("x", "bfloat16"),
        ("y", "float32"),
    ]


def test_a_cast_from_an_input_goes_back_to_its_dtype() -> None:
    plan = plan_of(f"""{LINEAR}
    up = cast(%x) -> %u: f32[4,8]
      {PINNED}
    back = cast(%u) -> %b: f32[4,8]
      {FOLLOWS}
    add = add(%b, %h) -> %a: f32[4,8]
    next = linear(%a, %w) -> %y: f32[4,8]
    return %y
    """)
    assert cast_of(plan) == ("follow", "float32")
    assert plan.by_op["back"].why == "its dtype follows that of %x, which is float32"


def test_a_dtype_argument_opens_a_stretch_too() -> None:
    plan = plan_of(f"""{LINEAR}
    softmax = softmax(%h) -> %p: f32[4,8]
      | dtype_argument="float32" chosen="pinned"
    back = cast(%p) -> %b: f32[4,8]
      {FOLLOWS}
    add = add(%b, %b) -> %a: f32[4,8]
    next = linear(%a, %w) -> %y: f32[4,8]
    return %y
    """)
    assert cast_of(plan) == ("follow", "bfloat16")
    assert cast_of(plan, "add") == ("promote", "bfloat16")


def test_a_cast_to_the_type_of_another_follows_that() -> None:
    text = """{linear}
    exp = exp(%x) -> %e: f32[4,8]
    back = cast(%e, %{other}) -> %b: f32[4,8]
      {follows}
    next = linear(%b, %w) -> %y: f32[4,8]
    return %y
    """
    low = plan_of(text.format(linear=LINEAR, other="h", follows=FOLLOWS))
    full = plan_of(text.format(linear=LINEAR, other="x", follows=FOLLOWS))
    assert cast_of(low) == ("follow", "bfloat16")
    assert cast_of(full) == ("follow", "float32")


def test_a_cast_that_ends_no_stretch_follows_what_it_converts() -> None:
    plan = plan_of(f"""{LINEAR}
    back = cast(%h) -> %b: f32[4,8]
      {FOLLOWS}
    next = linear(%b, %w) -> %y: f32[4,8]
    return %y
    """)
    assert cast_of(plan) == ("follow", "bfloat16")
    assert [c.value for c in plan.runtime_casts] == ["x", "y"]


def test_a_cast_whose_result_is_wanted_in_full_gives_full() -> None:
    plan = plan_of(f"""{LINEAR}
    up = cast(%h) -> %u: f32[4,8]
      {PINNED}
    back = cast(%u) -> %b: f32[4,8]
      {FOLLOWS}
    mean = mean(%b) -> %y: f32[]
    return %y
    """)
    assert cast_of(plan) == ("follow", "float32")
    assert plan.by_op["back"].causes == ("mean",)


def test_integers_and_extreme_masks_stay_full() -> None:
    plan = plan_of(f"""{LINEAR}
    %ids: i64[4,8] input
    ids = cast(%ids) -> %i: f32[4,8]
      {FOLLOWS}
    mask = mul(%i, %i) -> %m: f32[4,8]
      | literals=[-3.4e38]
    back = cast(%m) -> %b: f32[4,8]
      {FOLLOWS}
    add = add(%h, %b) -> %a: f32[4,8]
    next = linear(%a, %w) -> %y: f32[4,8]
    return %y
    """)
    assert cast_of(plan, "ids") == ("follow", "float32")
    assert cast_of(plan) == ("follow", "float32")
    (down,) = [c for c in plan.runtime_casts if c.value == "a"]
    assert down.saturate


def test_many_values_entered_the_model_itself() -> None:
    """A stream that sums up what many stretches gave is no stretch."""
    lines = [f"%x{i}: f32[4,8] input" for i in range(9)]
    lines += ["%w: f32[8,8] parameter"]
    for i in range(9):
        lines += [f"u{i} = cast(%x{i}) -> %u{i}: f32[4,8]", f"  {PINNED}"]
    lines += ["a1 = add(%u0, %u1) -> %a1: f32[4,8]"]
    lines += [f"a{i} = add(%a{i - 1}, %u{i}) -> %a{i}: f32[4,8]" for i in range(2, 9)]
    lines += ["back = cast(%a8) -> %b: f32[4,8]", f"  {FOLLOWS}"]
    lines += ["next = linear(%b, %w) -> %y: f32[4,8]", "return %y"]
    plan = plan_of("\n".join(lines))
    assert plan.by_op["back"].why == "its dtype follows that of %a8, which is float32"


def test_a_dtype_argument_that_follows_pins_nothing() -> None:
    text = """{linear}
    gelu = gelu(%h) -> %g: f32[4,8]
      | dtype_argument="float32" chosen="{chosen}"
    next = linear(%g, %w) -> %y: f32[4,8]
    return %y
    """
    pinned = plan_of(text.format(linear=LINEAR, chosen="pinned"))
    follows = plan_of(text.format(linear=LINEAR, chosen="follows"))
    assert cast_of(pinned, "gelu") == ("deny", "float32")
    assert cast_of(follows, "gelu") == ("promote", "bfloat16")


def test_a_filled_tensor_whose_dtype_is_meant_is_strong() -> None:
    text = """{linear}
    zeros = zeros() -> %z: f32[4,8]
      | dtype_argument="float32"{chosen} literals=[0.0]
    add = add(%z, %h) -> %a: f32[4,8]
    next = linear(%a, %w) -> %y: f32[4,8]
    return %y
    """
    pinned = plan_of(text.format(linear=LINEAR, chosen=' chosen="pinned"'))
    unknown = plan_of(text.format(linear=LINEAR, chosen=""))
    assert cast_of(pinned, "add") == ("promote", "float32")
    assert cast_of(unknown, "add") == ("promote", "bfloat16")


def test_weights_and_masks_may_enter_beside_what_is_meant() -> None:
    plan = plan_of(f"""{LINEAR}
    %g: f32[8] parameter
    %mask: f32[4,8] input
    up = cast(%h) -> %u: f32[4,8]
      {PINNED}
    gain = cast(%g) -> %gain: f32[8]
      {PINNED}
    masked = cast(%mask) -> %masked: f32[4,8]
      {PINNED}
    mul = mul(%u, %gain) -> %m: f32[4,8]
    add = add(%m, %masked) -> %a: f32[4,8]
    back = cast(%a) -> %b: f32[4,8]
      {FOLLOWS}
    next = linear(%b, %w) -> %y: f32[4,8]
    return %y
    """)
    assert plan.by_op["back"].why == "its dtype follows that of %h, which is bfloat16"


def test_a_cast_inside_a_stretch_opens_no_other() -> None:
    plan = plan_of(f"""{LINEAR}
    up = cast(%h) -> %u: f32[4,8]
      {PINNED}
    again = cast(%u) -> %v: f32[4,8]
      {PINNED}
    back = cast(%v) -> %b: f32[4,8]
      {FOLLOWS}
    next = linear(%b, %w) -> %y: f32[4,8]
    return %y
    """)
    assert cast_of(plan) == ("follow", "bfloat16")


def test_what_is_full_for_the_stretch_only_is_seen_through() -> None:
    plan = plan_of(f"""{LINEAR}
    %bias: f32[8] parameter
    add = add(%h, %bias) -> %a: f32[4,8]
    up = cast(%a) -> %u: f32[4,8]
      {PINNED}
    mul = mul(%u, %u) -> %m: f32[4,8]
    back = cast(%m) -> %b: f32[4,8]
      {FOLLOWS}
    next = linear(%b, %w) -> %y: f32[4,8]
    return %y
    """)
    assert plan.by_op["add"].precision == "float32"
    assert plan.by_op["back"].why == "its dtype follows that of %h, which is bfloat16"


def test_an_accumulator_is_low_as_its_contraction_is() -> None:
    text = LINEAR.replace("linear(%x", "matmul(%x")
    plan = plan_of(f"""{text}      | accumulates=true
    up = cast(%h) -> %u: f32[4,8]
      {PINNED}
    back = cast(%u) -> %b: f32[4,8]
      {FOLLOWS}
    next = linear(%b, %w) -> %y: f32[4,8]
    return %y
    """)
    assert plan.by_op["linear"].results == ("float32",)
    assert cast_of(plan) == ("follow", "bfloat16")


def test_a_cast_to_another_dtype_is_that_cast_whomever_it_follows() -> None:
    plan = plan_of(f"""{LINEAR}
    %half: f16[4,8] input
    back = cast(%h, %half) -> %b: f16[4,8]
      | dtype_argument="float16" chosen="follows" operand_rule="any"
    return %b
    """)
    assert cast_of(plan) == ("keep", "float16")


def test_a_view_by_a_pinned_cast_of_what_is_written_is_kept_full() -> None:
    plan = plan_of(f"""{LINEAR}
    up = cast(%h) -> %u: f32[4,8] alias %h
      {PINNED}
    add = add(%u, %x) -> %a: f32[4,8] alias %h
      | mutates=[0]
    next = linear(%h, %w) -> %y: f32[4,8]
    return %y
    """)
    kept = next(c for c in plan.runtime_casts if c.producer == "linear")
    assert (kept.from_dtype, kept.to_dtype) == ("bfloat16", "float32")
    assert kept.why == "some op writes it in place in full precision"
