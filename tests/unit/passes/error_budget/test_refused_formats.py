"""A contraction that is kept out of 8 bits says why."""

from dataclasses import replace
from math import inf

from amprewrite.passes import Setting, make_plan
from amprewrite.passes.error_budget.measured_search import without_eight_bits
from amprewrite.plan.facts import Gradients
from amprewrite.plan.sensitivity import EightBits, Sensitivity
from amprewrite.policy import Matcher, load_policy
from tests.placement_problem import graph_of

GRAPH = graph_of("""
    %x: f32[8,16] input
    %w: f32[4,16] parameter
    one = linear(%x, %w) -> %y: f32[8,4]
      | contracted=16
    return %y
""")
KEY = EightBits("one", "float8_e4m3fn", "current")


def whys(error: float, policy: str) -> list[str]:
    plan = make_plan(GRAPH, Matcher(load_policy(policy)), Setting())
    found = replace(Sensitivity({}, {}, 4), eight={KEY: error})
    return [d.why for d in without_eight_bits(plan.decisions, found)]


def test_the_error_is_the_reason() -> None:
    assert whys(4e-4, "bf16")[0].endswith(
        "not in 8 bits: operands in float8_e4m3fn alone cause an error of 2.0e-02"
    )
    assert "written in place or are not finite" in whys(inf, "bf16")[0]


def test_what_rounds_to_8_bits_has_its_own_reason() -> None:
    assert "not in 8 bits" not in whys(4e-4, "fp8")[0]


def test_the_error_of_gradients_is_beside_it() -> None:
    plan = make_plan(GRAPH, Matcher(load_policy("bf16")), Setting())
    found = Gradients({"w": 2.0}, {"w": 4}, {"one": {"w": 0.2}}, {"w": 0.0})
    both = replace(Sensitivity({}, {}, 4), eight={KEY: 4e-4}, gradients=found)
    (decision,) = without_eight_bits(plan.decisions, both)
    assert decision.why.endswith("an error of 2.0e-02, and 1.0e-01 of gradients")
    backward = EightBits("one", "", "current")
    alone = replace(both, eight={backward: 0.0})
    (decision,) = without_eight_bits(plan.decisions, alone)
    assert decision.why.endswith("not in 8 bits: it causes 1.0e-01 of gradients")
