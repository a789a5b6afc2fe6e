"""The class of every op: the policy's word, and the facts that overrule it."""

from dataclasses import replace

import pytest

from amprewrite.ir import parse_graph
from amprewrite.passes.analysis.classify import classify, lowers_promoted
from amprewrite.policy import Matcher, OpClass, Policy, Reason, load_policy
from amprewrite.policy.match import Match


def class_of(text: str, policy: str = "bf16", **override: str) -> Match:
    """Return the class of the last op of a graph."""
    graph = parse_graph(f"{text}\nreturn")
    overrides = [override] if override else []
    return classify(graph, Matcher(load_policy(policy), overrides))[graph.ops[-1].name]


X = "%x: f32[4] input\n%d: f64[4] input\n%n: i64[4] input\n%h: bf16[4] input\n"


@pytest.mark.parametrize(
    ("op", "op_class", "rule"),
    [
        ("matmul", "allow", "groups.contraction"),
        ("softmax", "deny", "groups.softmax"),
        ("avg_pool2d", "accumulate", "groups.average_pool"),
        ("add", "promote", "groups.pointwise"),
        ("relu", "follow", "groups.clamp"),
        ("floor", "keep", "groups.rounding"),
        ("softplus", "deny", "ops.softplus"),
    ],
)
def test_the_policy_says_the_class(op: str, op_class: str, rule: str) -> None:
    found = class_of(f"{X}a = {op}(%x) -> %y: f32[4]")
    assert (found.op_class, found.rule) == (op_class, rule)


def test_a_policy_without_a_low_dtype_keeps_everything() -> None:
    found = class_of(f"{X}a = matmul(%x) -> %y: f32[4]", "off")
    assert (found.op_class, found.rule) == ("keep", "policy")
    assert found.why == "policy off lowers nothing"


def test_an_op_inside_a_fence_is_kept_for_the_reason_of_the_fence() -> None:
    found = class_of(f'{X}a = matmul(%x) -> %y: f32[4]\n  | fence="a region"')
    assert (found.op_class, found.rule, found.why) == ("keep", "fence", "a region")


def test_a_fence_is_stronger_than_an_override() -> None:
    text = f'{X}a = matmul(%x) -> %y: f32[4]\n  | fence="a region"'
    assert class_of(text, **{"op": "matmul", "class": "allow"}).rule == "fence"


def test_a_cast_of_the_user_is_kept() -> None:
    text = f'{X}a = cast(%x) -> %y: f32[4]\n  | dtype_argument="float32"'
    assert class_of(text).rule == "user cast"


@pytest.mark.parametrize("operand", ["d", "n", "h"])
def test_an_op_without_a_full_value_is_kept(operand: str) -> None:
    dtype = {"d": "f64", "n": "i64", "h": "bf16"}[operand]
    found = class_of(f"{X}a = matmul(%{operand}) -> %y: {dtype}[4]")
    assert (found.op_class, found.rule) == ("keep", "dtype")


@pytest.mark.parametrize("operand", ["d", "h"])
def test_an_op_on_mixed_float_dtypes_is_kept(operand: str) -> None:
    found = class_of(f"{X}a = matmul(%x, %{operand}) -> %y: f32[4]")
    assert (found.op_class, found.rule) == ("keep", "dtype")
    assert found.why.startswith(f"%{operand} is ")


def test_an_integer_operand_beside_a_full_one_is_no_obstacle() -> None:
    assert class_of(f"{X}a = matmul(%x, %n) -> %y: f32[4]").op_class == "allow"


@pytest.mark.parametrize(
    ("dtype", "op_class"), [("float32", "deny"), ("float64", "keep")]
)
def test_a_dtype_argument_of_the_model_is_respected(dtype: str, op_class: str) -> None:
    text = f'{X}a = cumsum(%x) -> %y: f32[4]\n  | dtype_argument="{dtype}"'
    found = class_of(text, **{"op": "cumsum", "class": "allow"})
    assert (found.op_class, found.rule) == (op_class, "dtype argument")


def test_a_dtype_argument_that_agrees_with_the_class_keeps_its_reason() -> None:
    text = f'{X}a = softmax(%x) -> %y: f32[4]\n  | dtype_argument="float32"'
    assert class_of(text).rule == "groups.softmax"


def test_a_dtype_argument_of_a_factory_says_nothing_about_operands() -> None:
    facts = 'dtype_argument="float32" operand_rule="any"'
    text = f"{X}a = zeros_like(%x) -> %y: f32[4]\n  | {facts}"
    assert class_of(text).rule == "groups.factory"


VIEW = """
%x: f32[4] input
view = view(%x) -> %v: f32[4] alias %x
add = add(%{written}) -> %w: f32[4]{alias}
  | mutates={mutates}
view_1 = view(%x) -> %y: f32[4] alias %x"""


@pytest.mark.parametrize("op_class", ["allow", "deny", "accumulate", "promote"])
def test_a_view_of_what_is_written_follows_whatever_a_rule_says(op_class: str) -> None:
    text = VIEW.format(written="v", alias=" alias %x", mutates="[0]")
    found = class_of(text, **{"op": "view", "class": op_class})
    assert (found.op_class, found.rule) == ("follow", "overrides[0]")
    assert "would make it a copy" in found.why


def test_a_view_of_what_nobody_writes_has_the_class_of_the_rule() -> None:
    text = VIEW.format(written="v", alias="", mutates="[]")
    assert class_of(text, **{"op": "view", "class": "allow"}).op_class == "allow"


OUTER = "%p: f32[9,1] input\n%f: f32[1,4] buffer\na = matmul(%p, %f) -> %y: f32[9,4]"


@pytest.mark.parametrize("length", [0, 1])
def test_an_outer_product_is_never_lowered(length: int) -> None:
    found = class_of(f"{OUTER}\n  | contracted={length}")
    assert (found.op_class, found.rule) == ("deny", "contraction")


@pytest.mark.parametrize("facts", ["", "\n  | contracted=2"])
def test_a_contraction_of_some_or_unknown_length_is(facts: str) -> None:
    assert class_of(OUTER + facts).op_class == "allow"


def test_an_outer_product_may_be_lowered_by_a_rule_of_the_user() -> None:
    found = class_of(f"{OUTER}\n  | contracted=1", **{"op": "matmul", "class": "allow"})
    assert (found.op_class, found.rule) == ("allow", "overrides[0]")


@pytest.mark.parametrize(
    ("asked", "canonical", "expected"),
    [
        ("full", "linear", "deny"),
        ("full", "add", "deny"),
        ("full", "reshape", "follow"),
        ("full", "argmax", "keep"),
        ("low", "softmax", "allow"),
        ("low", "add", "allow"),
        ("low", "reshape", "follow"),
    ],
)
def test_a_marker_comes_before_every_rule(
    asked: str, canonical: str, expected: str
) -> None:
    text = f"""%x: f32[4,8] input
op = {canonical}(%x) -> %y: f32[4,8]
  | asked="{asked}"
"""
    plain = class_of(text)
    found = class_of(text, op=canonical, **{"class": "promote"})
    if expected in ("follow", "keep"):
        assert (str(plain.op_class), plain.reason) == (expected, Reason.GROUP)
    else:
        assert (str(found.op_class), found.rule) == (expected, "marker")


def why_of(line: str) -> str:
    return class_of(f"%b: b1[4] input\n{X}{line}", "promote").why


def test_promoted_operands_say_why() -> None:
    facts = 'reads=["bool", "float32", "float32"]'
    line = f"a = where(%b, %h, %x) -> %y: f32[4]\n  | {facts}"
    assert why_of(line) == "bfloat16 and float32 promote to float32"
    facts = 'reads=["float32", "float32"]'
    line = f"a = slice_scatter(%x, %d) -> %y: f32[4]\n  | {facts}"
    assert why_of(line) == "the tensor written into keeps its dtype, float32"
    line = 'a = carry(%d) -> %y: f32[4]\n  | reads=["float32"]'
    assert why_of(line) == "float64 to float32: a carry of a loop keeps its dtype"


def test_a_norm_of_complex_numbers_says_why() -> None:
    found = class_of("%z: c64[4] input\na = abs_square(%z) -> %y: c64[4]", "bf16")
    assert (found.op_class, found.rule) == ("keep", "promotion")
    assert "|x|^2" in found.why


MIXED = """
%x: bf16[4,8] input
%w: f32[2,8] parameter
op = linear(%x, %w) -> %y: f32[4,2]
  | reads=["float32","float32"]
return %y
"""


def both() -> Policy:
    return replace(load_policy("bf16"), promotion="jax")


@pytest.mark.parametrize(
    ("op", "op_class"),
    [("linear", "allow"), ("softmax", "deny"), ("add", "promote"), ("mystery", "deny")],
)
def test_what_promotes_to_full_is_of_the_class_of_its_op(
    op: str, op_class: str
) -> None:
    graph = parse_graph(MIXED.replace("linear", op))
    found = classify(graph, Matcher(both()))["op"]
    assert str(found.op_class) == op_class
    assert found.why.endswith("bfloat16 and float32 promote to float32")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"float32","float32"', '"float64","float64"'),
        ("linear", "index_put"),
        ("linear", "carry"),
        ('"]\n', '"] mutates=[0]\n'),
    ],
)
def test_what_promotes_otherwise_is_read_as_promoted(old: str, new: str) -> None:
    graph = parse_graph(MIXED.replace(old, new))
    assert not lowers_promoted(graph.ops[0], both())
    found = classify(graph, Matcher(both()))["op"]
    assert found.reason is Reason.PROMOTION
    assert not lowers_promoted(graph.ops[0], load_policy("promote"))


@pytest.mark.parametrize("op", ["enter", "leave"])
@pytest.mark.parametrize("dtype", ["i32", "b1"])
def test_what_passes_a_body_and_is_no_float_is_kept(op: str, dtype: str) -> None:
    graph = parse_graph(f"%x: {dtype}[4] input\na = {op}(%x) -> %y: {dtype}[4]\n")
    found = classify(graph, Matcher(load_policy("bf16")))["a"]
    assert (found.op_class, found.reason) == (OpClass.KEEP, Reason.DTYPE)
    floats = parse_graph(f"%x: f32[4] input\na = {op}(%x) -> %y: f32[4]\n")
    moved = classify(floats, Matcher(load_policy("bf16")))["a"]
    assert (moved.op_class, moved.reason) == (OpClass.FOLLOW, Reason.BODY)


@pytest.mark.parametrize(
    ("forward", "backward", "policy", "op_class"),
    [
        (0.25, 1.0, "bf16", "follow"),
        (-2.0, 0.5, "bf16", "follow"),
        (0.3, 1.0, "bf16", "promote"),
        (1.0, 0.3, "bf16", "promote"),
        (0.0, 1.0, "bf16", "promote"),
        (2.0**-20, 1.0, "bf16", "follow"),
        (2.0**-20, 1.0, "fp16", "promote"),
        (1.0, 2.0**16, "fp16", "promote"),
        (0.25, 1.0, "off", "keep"),
    ],
)
def test_a_scale_by_powers_of_two_moves_data(
    forward: float, backward: float, policy: str, op_class: str
) -> None:
    text = f"{X}a = scale(%x) -> %y: f32[4]\n  | literals=[{forward!r}, {backward!r}]"
    assert class_of(text, policy).op_class == op_class


def test_a_scale_by_an_extent_is_not_known_to_be_exact() -> None:
    text = f"{X}a = scale(%x) -> %y: f32[4]\n  | literals=[1.0]"
    assert class_of(text).op_class == "promote"


def test_a_rule_decides_on_a_scale() -> None:
    text = f"{X}a = scale(%x) -> %y: f32[4]\n  | literals=[1.0, 2.0]"
    assert class_of(text, **{"op": "scale", "class": "deny"}).op_class == "deny"
