"""A plan in words."""

from dataclasses import replace
from textwrap import dedent

import pytest

from amprewrite.plan.fields import TimedPlan
from tests.plan_text import plan_of

TEXT = """
%x: f32[4,8] input
%w: f32[8,8] parameter
linear = linear(%x, %w) -> %h: f32[4,8]
  | native="aten.linear.default" path="body.0" source="model.py:7"
square = square(%h) -> %q: f32[4,8]
mean = mean(%q) -> %m: f32[4]
scan = mylib.scan(%m) -> %s: f32[4]
  | native="mylib.scan.default"
return %s
"""


def test_the_summary_says_what_was_lowered_and_cast() -> None:
    assert plan_of(TEXT).summary() == dedent("""\
        policy bf16, placement promote; given as a graph
        rewritten 1 of 4 ops to bfloat16
        classes: allow 1, deny 1, keep 1, promote 1
        casts: 2 at run time (384 bytes, 0 of weights), 1 folded (1 of weights in all)
        heaviest casts: f32 -> bf16 for linear at body.0 (192 bytes), bf16 -> f32 for square (192 bytes)
        unclassified, run as traced: mylib.scan.default (1)
          a line under [ops] of a policy gives a class: "mylib::scan" = "promote\"""")  # noqa: E501  # a line as it is printed


def test_the_summary_says_where_measured_prices_come_from() -> None:
    plan = plan_of(TEXT)
    assert "prices" not in plan.summary()
    summary = replace(plan, prices="measured on a toaster").summary()
    assert "\nprices: measured on a toaster\n" in summary


def test_the_summary_is_loud_when_nothing_was_lowered() -> None:
    summary = plan_of(TEXT, overrides=[{"op": "linear", "class": "deny"}]).summary()
    assert "rewritten 0 of 4 ops to bfloat16: NOTHING WAS LOWERED" in summary
    assert "warning: rewritten 0 of 4 ops" in summary


def test_the_summary_says_how_far_a_plan_within_a_tolerance_may_be_off() -> None:
    plan = plan_of(TEXT)
    assert "cheapest plan" not in plan.summary()
    for bound, far in ((9993, "at most 0.07% above"), (10000, "as few as")):
        cost = replace(plan.cost, total_bytes=10000, lower_bound=bound)
        within = replace(plan, cost=cost, predicted_error=1e-3)
        line = f"cost: 10,000 bytes, {far} the cheapest plan with no larger predicted"
        assert line in within.summary()


def test_a_policy_that_lowers_nothing_is_not_blamed_for_it() -> None:
    assert "LOWERED" not in plan_of(TEXT, "off").summary()
    assert "rewritten" not in plan_of(TEXT, "off").summary()


def test_an_op_is_explained_by_rule_reason_path_and_casts() -> None:
    assert plan_of(TEXT).explain("square") == dedent("""\
        square = square ()
          at       (root)  
          class    promote, by groups.square
          computes float32
          why      mean wants full precision
          because  mean reads it
          reads    %h cast bfloat16 -> float32""")  # noqa: W291  # there is no source


def test_an_explanation_tells_folded_casts() -> None:
    lines = plan_of(TEXT).explain("linear").split("\n")
    assert lines[:2] == [
        "linear = linear (aten.linear.default)",
        "  at       body.0  model.py:7",
    ]
    assert lines[-2:] == [
        "  reads    %w cast float32 -> bfloat16, folded (storage)",
        "  reads    %x cast float32 -> bfloat16",
    ]


def test_equal_plans_do_not_differ() -> None:
    assert plan_of(TEXT).diff(plan_of(TEXT)) == ()


def test_a_difference_names_ops_and_casts_in_their_order() -> None:
    low = [{"op": "square", "class": "allow"}, {"op": "mean", "class": "allow"}]
    assert plan_of(TEXT).diff(plan_of(TEXT, overrides=low)) == (
        "square: promote float32 -> allow bfloat16",
        "mean: deny float32 -> allow bfloat16",
        "cast %h bfloat16 -> float32 for square: only in the first plan",
        "cast %m bfloat16 -> float32 for scan: only in the second plan",
    )


@pytest.mark.parametrize(("one", "two", "side"), [(0, 1, "second"), (1, 0, "first")])
def test_ops_of_one_plan_alone_are_named(one: int, two: int, side: str) -> None:
    short = "%x: f32[4] input\nrelu = relu(%x) -> %y: f32[4]\nreturn %y"
    long = short.replace("return %y", "exp = exp(%y) -> %z: f32[4]\nreturn %z")
    plans = [plan_of(short), plan_of(long)]
    assert plans[one].diff(plans[two]) == (f"exp: only in the {side} plan",)


def test_the_summary_has_the_times_of_the_candidates() -> None:
    plan = replace(
        plan_of("%x: f32[2] input\nreturn %x"),
        timed=(TimedPlan("full", 2e-3, 0.0, 1), TimedPlan("promote", 0.5, 3e-3, 1)),
    )
    assert (
        "fastest of 2: full 2 ms (error 0), promote 500 ms (error 0.003)"
    ) in plan.summary()
