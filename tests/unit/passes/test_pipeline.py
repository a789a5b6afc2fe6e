"""The passes in their order: policies, settings, warnings."""

import dataclasses
import textwrap

import pytest

from amprewrite.errors import UnsupportedError
from amprewrite.ir import parse_graph
from amprewrite.passes import make_plan
from amprewrite.passes.pipeline import Setting, output_dtypes
from amprewrite.policy import Matcher, OpClass, Policy, Rule, load_policy
from tests.plan_text import assert_plan, cast_lines, decision_lines, plan_of

BLOCK = """
    %x: f32[4,8] input
    %w: f32[8,8] parameter
    linear = linear(%x, %w) -> %h: f32[4,8]
      | native="aten.linear.default" path="body.0" source="model.py:7"
    softmax = softmax(%h) -> %p: f32[4,8]
      | native="aten.softmax.int" path="body.1" source="model.py:8"
      | has_dtype_argument=true
    return %p
"""

NOTHING = "rewritten 0 of 2 ops: nothing was lowered"


def test_a_block_under_bf16() -> None:
    assert_plan(
        plan_of(BLOCK),
        """
        linear: allow bf16
        softmax: deny f32
        """,
        """
        %w: f32[8,8] -> bf16 for linear (storage)
        %x: f32[4,8] -> bf16 for linear
        %h: bf16[4,8] -> f32 for softmax (dtype)
        """,
    )


def test_a_block_under_off_is_left_alone() -> None:
    assert_plan(plan_of(BLOCK, "off"), "linear: keep f32\nsoftmax: keep f32", "")
    assert plan_of(BLOCK, "off").warnings == ()


def test_a_decision_says_everything_about_its_op() -> None:
    decision = plan_of(BLOCK).by_op["softmax"]
    assert (decision.native, decision.path) == ("aten.softmax.int", "body.1")
    assert (decision.rule, decision.source) == ("groups.softmax", "model.py:8")
    assert decision.why == "exp and a sum: range and cancellation"
    assert (decision.operands, decision.results) == (("float32",), ("float32",))


@pytest.mark.parametrize(
    ("output", "dtype"),
    [("as-traced", "float32"), ("full", "float32"), ("low", "bfloat16")],
)
def test_the_policy_says_the_dtype_of_the_outputs(output: str, dtype: str) -> None:
    policy = dataclasses.replace(load_policy("bf16"), output=output)
    graph = parse_graph("%x: f32[4] input\n%i: i64[4] input\nreturn %x, %i")
    assert output_dtypes(graph, policy) == (dtype, "int64")


def test_a_low_output_makes_its_producers_free_to_be_low() -> None:
    text = """
        %x: f32[4,8] input
        %w: f32[8,8] parameter
        linear = linear(%x, %w) -> %h: f32[4,8]
        gelu = gelu(%h) -> %y: f32[4,8]
        return %y
    """
    low = dataclasses.replace(load_policy("bf16"), output="low")
    assert decision_lines(plan_of(text)) == "linear: allow bf16\ngelu: promote f32"
    assert (
        decision_lines(plan_of(text, low)) == "linear: allow bf16\ngelu: promote bf16"
    )
    assert [c.value for c in plan_of(text, low).casts] == ["w", "x"]


def test_a_dtype_may_be_named_for_the_outputs() -> None:
    policy = dataclasses.replace(load_policy("bf16"), output="float16")
    assert cast_lines(plan_of(BLOCK, policy)).endswith(
        "%p: f32[4,8] -> f16 for output[0]"
    )


def test_an_override_comes_before_a_rule_and_a_rule_before_the_table() -> None:
    rule = Rule(op_class=OpClass.KEEP, op="softmax", why="the rule")
    policy = dataclasses.replace(load_policy("bf16"), rules=(rule,))
    assert plan_of(BLOCK, policy).by_op["softmax"].rule == "rules[0]"
    overrides = [{"path": "body.1", "class": "allow"}]
    plan = plan_of(BLOCK, policy, overrides)
    assert plan.by_op["softmax"].rule == "overrides[0]"
    assert plan.by_op["softmax"].precision == "bfloat16"
    (warning,) = plan.warnings
    assert f"unused rule: rules[0] {rule} matched no op; overrides" in warning


@pytest.mark.parametrize(
    "key",
    [
        {"op": "softmax"},
        {"native": "aten.softmax.*"},
        {"op_name": "softmax"},
        {"path": "body.1"},
        {"source": "model.py:8"},
    ],
)
def test_every_key_of_an_override_finds_its_op(key: dict[str, str]) -> None:
    plan = plan_of(BLOCK, overrides=[{**key, "class": "allow"}])
    assert [d.op for d in plan.lowered] == ["linear", "softmax"]


def test_unused_rules_are_reported() -> None:
    plan = plan_of(BLOCK, overrides=[{"path": "head.*", "class": "deny"}])
    (warning,) = plan.warnings
    rule = "{ path = 'head.*', class = 'deny' }"
    assert warning.startswith(f"unused rule: overrides[0] {rule} matched no op; ")
    assert warning.endswith("is 'head.*', there are 'body', 'body.0', 'body.1'")


def test_a_plan_that_lowers_nothing_says_so() -> None:
    plan = plan_of(BLOCK, overrides=[{"op": "linear", "class": "deny"}])
    (warning,) = plan.warnings
    assert warning.startswith(f"{NOTHING}; the policy allows 1 of them, which are kept")


def test_a_program_that_is_low_already_is_told_apart() -> None:
    plan = plan_of(BLOCK.replace("f32", "bf16"))
    assert plan.warnings == (f"{NOTHING}; the model is already in bfloat16",)
    assert plan.casts == ()


def test_an_unknown_placement_is_refused() -> None:
    matcher = Matcher(load_policy("bf16"))
    with pytest.raises(
        UnsupportedError,
        match=r"unknown placement 'best'; want promote, paint, optimal",
    ):
        make_plan(parse_graph("return"), matcher, Setting(placement="best"))


def test_the_setting_is_part_of_the_plan() -> None:
    setting = Setting(captured="given by a test")
    plan = make_plan(parse_graph("return"), Matcher(Policy("mine")), setting)
    assert (plan.captured, plan.placement, plan.policy) == (
        "given by a test",
        "promote",
        "mine",
    )


def test_a_program_without_ops_has_a_plan() -> None:
    plan = plan_of("%x: f32[4] input\nreturn %x")
    assert (plan.decisions, plan.casts) == ((), ())
    assert plan.warnings[0].startswith("rewritten 0 of 0 ops")


def test_the_same_program_gives_the_same_plan() -> None:
    assert plan_of(BLOCK) == plan_of(BLOCK)


STATE = """
    %mean: f32[4] buffer
    %x: f64[4] input
    add = add(%mean, %x) -> %new: f64[4]
      | reads=["float64", "float64"]
    return %new into %mean, %new
"""


def test_a_state_keeps_its_dtype_where_the_policy_promotes() -> None:
    graph = parse_graph(textwrap.dedent(STATE))
    promote = load_policy("promote")
    assert output_dtypes(graph, promote) == ("float32", "float64")
    assert output_dtypes(graph, load_policy("bf16")) == ("float64", "float64")
    named = dataclasses.replace(promote, output="float16")
    assert output_dtypes(graph, named) == ("float32", "float64")
    (cast,) = (cast for cast in plan_of(STATE, "promote").casts if cast.value == "new")
    assert cast.uses == (("output", 0),)
    assert cast.why == "a state keeps the dtype it is stored in: %mean is float32"


@pytest.mark.parametrize(
    ("stored", "new", "kept"),
    [("i32", "i64", "int32"), ("i32", "f32", "float32"), ("c64", "f64", "complex64")],
)
def test_a_state_is_cast_back_if_it_loses_precision_only(
    stored: str, new: str, kept: str
) -> None:
    text = f"%s: {stored}[4] buffer\na = exp(%s) -> %n: {new}[4]\nreturn %n into %s"
    assert output_dtypes(parse_graph(text), load_policy("promote")) == (kept,)
