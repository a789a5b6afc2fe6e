"""Guards: numbers that low rounds to 0, 1, -1 or infinity, and the ops they keep."""

from textwrap import dedent

import pytest

from amprewrite.ir import parse_graph
from amprewrite.passes import Setting, make_plan
from amprewrite.plan import Plan
from amprewrite.policy import Matcher, load_policy

PLACEMENTS = ("promote", "paint", "optimal")


def plan_of(text: str, policy: str = "bf16", placement: str = "promote") -> Plan:
    graph = parse_graph(dedent(text).strip())
    return make_plan(graph, Matcher(load_policy(policy)), Setting(placement))


def full_of(text: str, policy: str = "bf16", placement: str = "promote") -> set[str]:
    plan = plan_of(text, policy, placement)
    return {d.op for d in plan.decisions if d.precision == "float32"}


def program(*lines: str, result: str = "y") -> str:
    """Return a program of large products, so that low pays, around ``lines``."""
    head = """
%x: f32[64,512] input
%w: f32[512,512] parameter
product = matmul(%x, %w) -> %p: f32[64,512]
  | contracted=512
"""
    return "\n".join((head.strip(), *lines, f"return %{result}"))


CLAMP = "clamp = clamp(%p) -> %c: f32[64,512]\n  | literals=[0.999]"
SUB = "sub = sub(%c) -> %s: f32[64,512]\n  | literals=[1.0]"
LOG = "log = log(%s) -> %y: f32[64,512]"
LAST = "last = matmul(%c, %w) -> %y: f32[64,512]\n  | contracted=512"


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_bound_next_to_one_keeps_itself_and_the_way_to_its_reader(
    placement: str,
) -> None:
    plan = plan_of(program(CLAMP, SUB, LOG), placement=placement)
    assert {plan.by_op[n].precision for n in ("clamp", "sub")} == {"float32"}
    for name in ("clamp", "sub"):
        why = plan.by_op[name].why
        assert why == "the bound 0.999 of clamp is 1 in bfloat16", name
    assert plan.by_op["clamp"].causes == ("sub", "log")


def test_a_guarded_product_hands_over_its_accumulator_if_it_can() -> None:
    text = program(CLAMP, SUB, LOG)
    assert "product" not in full_of(text)
    accumulating = text.replace("contracted=512", "contracted=512 accumulates=true")
    decision = plan_of(accumulating).by_op["product"]
    assert (decision.precision, decision.results) == ("bfloat16", ("float32",))


def test_a_product_is_low_if_its_guard_is_next_to_zero() -> None:
    text = program(CLAMP.replace("0.999", "1e-8"), LOG.replace("%s", "%c"))
    assert full_of(text, "fp16") == {"clamp", "log"}


@pytest.mark.parametrize("number", ["0.99", "1.0", "-1.0", "6.0", "0.1", "0.0", "1e-5"])
def test_an_ordinary_bound_leaves_all_ops_low(number: str) -> None:
    text = program(CLAMP.replace("0.999", number), LAST)
    assert full_of(text) == set()
    read = program(CLAMP.replace("0.999", number), LOG.replace("%s", "%c"))
    assert full_of(read) == {"log"}


def test_a_guard_without_a_reader_in_full_is_low() -> None:
    assert full_of(program(CLAMP, LAST)) == set()


def test_a_second_reader_in_low_takes_nothing_from_a_guard() -> None:
    second = LAST.replace("%y", "%z").replace("last", "second")
    text = program(CLAMP, SUB, LOG, second, result="y, %z")
    assert {"clamp", "sub", "log"} <= full_of(text)
    assert "second" not in full_of(text)


def test_an_output_reads_a_guard() -> None:
    assert "clamp" in full_of(program(CLAMP, result="c"))


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize(
    ("op", "facts"),
    [("sqrt", ""), ("div", ""), ("rsqrt", ""), ("acos", ""), ("pow", "literals=[0.5]")],
)
def test_ops_without_a_bound_read_a_guard(op: str, facts: str, placement: str) -> None:
    other = "%x, " if op == "div" else ""
    reader = f"reader = {op}({other}%c) -> %r: f32[64,512]"
    reader += f"\n  | {facts}" if facts else ""
    last = LAST.replace("%c", "%r")
    text = program(CLAMP.replace("0.999", "1e-8"), reader, last)
    assert "clamp" in full_of(text, "fp16", placement)
    assert "reader" in full_of(text, "fp16", placement)


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("number", ["-1e9", "-3.4028234663852886e38"])
def test_a_mask_saturates_before_a_softmax(number: str, placement: str) -> None:
    fill = f"fill = masked_fill(%p, %m) -> %c: f32[64,512]\n  | literals=[{number}]"
    mask = "%m: bool[64,512] input\n"
    softmax = "softmax = softmax(%c) -> %y: f32[64,512]"
    text = mask + program(fill, softmax)
    plan = plan_of(text, "fp16", placement)
    assert plan.by_op["fill"].precision == "float16"
    logarithm = mask + program(fill, LOG.replace("%s", "%c"))
    plan = plan_of(logarithm, "fp16", placement)
    assert plan.by_op["fill"].precision == "float32"
    assert "is -inf in float16" in plan.by_op["fill"].why


def test_constants_guard_as_literals_do() -> None:
    text = program(
        "most = maximum(%p, %least) -> %c: f32[64,512]", LOG.replace("%s", "%c")
    )
    for value, full in (("1e-08", True), ("0.5", False)):
        constant = f"%least: f32[] constant = {value}\n"
        assert ("most" in full_of(constant + text, "fp16")) == full


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_bound_that_is_an_argument_is_not_rounded(placement: str) -> None:
    text = "%least: f32[] input\n" + program(
        "most = maximum(%p, %least) -> %c: f32[64,512]", LOG.replace("%s", "%c")
    )
    assert "most" in full_of(text, "fp16", placement)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_number_written_in_place_is_read_by_later_readers(placement: str) -> None:
    text = program(
        "row = select(%p) -> %r: f32[512] alias %p",
        "fill = fill(%r) -> %f: f32[512] alias %p",
        "  | literals=[1e-8] mutates=[0]",
        "log = log(%p) -> %y: f32[64,512]",
    )
    plan = plan_of(text, "fp16", placement)
    assert plan.by_op["fill"].precision == "float32"
    assert plan.by_op["fill"].causes == ("log",)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_mask_that_is_an_argument_is_added_in_full_before_a_softmax(
    placement: str,
) -> None:
    text = "%b: f32[64,512] input\n" + program(
        "add = add(%p, %b) -> %s: f32[64,512]",
        "softmax = softmax(%s) -> %y: f32[64,512]",
    )
    assert "add" in full_of(text, "fp16", placement=placement)


def test_casts_of_added_arguments_and_of_large_constants_saturate() -> None:
    text = """
        %x: f32[4,8,8] input
        %b: f32[4,8,8] input
        %m: f32[8,8] buffer = -3.4028234663852886e+38
        product = baddbmm(%b, %x, %x) -> %p: f32[4,8,8]
          | contracted=8
        other = baddbmm(%m, %p, %p) -> %s: f32[4,8,8]
          | contracted=8
        softmax = softmax(%s) -> %y: f32[4,8,8]
        return %y
    """
    casts = {c.value: (c.saturate, c.folding) for c in plan_of(text).casts}
    assert casts["b"] == casts["m"] == (True, "")
    assert casts["x"] == (False, "")


@pytest.mark.parametrize(("shape", "full"), [("", True), ("8,8", False)])
def test_an_addend_that_is_computed_is_low_unless_it_is_a_scalar(
    shape: str, *, full: bool
) -> None:
    text = f"""
        %x: f32[8,8] input
        ones = ones() -> %o: f32[{shape}]
        slopes = exp(%o) -> %s: f32[{shape}]
        product = addmm(%s, %x, %x) -> %p: f32[8,8]
          | contracted=8
        softmax = softmax(%p) -> %y: f32[8,8]
        return %y
    """
    assert ("product" in full_of(text)) == full


def test_a_rule_of_the_user_comes_before_a_guard() -> None:
    text = program(CLAMP, SUB, LOG)
    graph = parse_graph(dedent(text).strip())
    matcher = Matcher(load_policy("bf16"), [{"op": "clamp", "class": "allow"}])
    plan = make_plan(graph, matcher, Setting())
    assert plan.by_op["clamp"].precision == "bfloat16"


def test_a_policy_without_demand_has_no_guards(tmp_path) -> None:
    path = tmp_path / "plain.toml"
    path.write_text('extends = "bf16"\n[placement]\ndemand = false\n')
    assert "clamp" not in full_of(program(CLAMP, SUB, LOG), str(path))
