"""Why an op is full whose values low precision cannot hold."""

from math import inf

from amprewrite.passes import Setting, make_plan
from amprewrite.passes.cost.cost import Objective
from amprewrite.passes.cost.cost_model import EAGER
from amprewrite.passes.error_budget.measured_search import explained
from amprewrite.plan.sensitivity import Limit, Sensitivity
from amprewrite.policy import Matcher, load_policy
from tests.placement_problem import graph_of

GRAPH = graph_of("""
    %x: f32[512,512] input
    %w: f32[512,512] parameter
    first = linear(%x, %w) -> %h: f32[512,512]
      | contracted=512
    second = linear(%h, %w) -> %y: f32[512,512]
      | contracted=512
    return %y
""")


def reasons(
    found: Sensitivity, *, full: bool = True, denied: bool = False
) -> dict[str, str]:
    """Of a plan in which a limit, or a rule, kept both ops full."""
    limits = (Limit({"h": 1.0, "y": 1.0}, 0.5),) if full else ()
    rules = [{"op": "linear", "class": "deny"}] if denied else ()
    matcher = Matcher(load_policy("fp16"), rules)
    setting = Setting("optimal", objective=Objective(EAGER, limits))
    plan = make_plan(GRAPH, matcher, setting)
    assert bool(plan.lowered) != (full or denied)
    return {d.op: d.why for d in explained(plan, GRAPH, found)}


def test_the_peak_of_what_an_op_makes_or_reads_is_its_reason() -> None:
    found = Sensitivity({"h": inf}, {("h", "second"): inf}, 4, {"h": 123456.0})
    assert reasons(found) == {
        "first": "its values reach 1.2e+05, beyond float16",
        "second": "the values of %h reach 1.2e+05, beyond float16",
    }


def test_without_a_peak_the_error_has_no_bound() -> None:
    why = reasons(Sensitivity({"h": inf}, {}, 4))["first"]
    assert why == "the error of its values in float16 has no bound"


def test_finite_errors_are_no_reason() -> None:
    found = Sensitivity({"h": 1.0}, {("h", "second"): 1.0}, 4, {"h": 123456.0})
    assert not any("reach" in why for why in reasons(found).values())


def test_a_policy_decides_before_and_what_is_low_needs_no_reason() -> None:
    found = Sensitivity({"h": inf}, {("h", "second"): inf}, 4, {"h": 123456.0})
    for given in (reasons(found, denied=True), reasons(found, full=False)):
        assert not any("reach" in why for why in given.values())
