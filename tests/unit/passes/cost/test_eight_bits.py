"""Contractions round to 8 bits where that saves most within limits on errors."""

import pytest

from amprewrite.passes import Setting, make_plan
from amprewrite.passes.cost.cost import Objective, saved_by, saved_bytes
from amprewrite.plan import Plan
from amprewrite.plan.sensitivity import EightBits, Limit
from amprewrite.policy import Matcher, load_policy
from amprewrite.policy.model import Contract
from tests.placement_problem import graph_of

GRAPH = graph_of("""
    %x: f32[8,16] input
    %w: f32[4,16] parameter
    %v: f32[2,4] parameter
    one = linear(%x, %w) -> %h: f32[8,4]
      | contracted=16
    two = linear(%h, %v) -> %y: f32[8,2]
      | contracted=4
    return %y
""")
FORMATS = Contract("float8_e4m3fn", "float8_e5m2", "current")
KEYS = {op: EightBits(op, FORMATS.forward, FORMATS.scaling) for op in ("one", "two")}


def test_a_byte_is_saved_for_each_number_that_is_multiplied() -> None:
    ops = GRAPH.op_by_name
    assert saved_bytes(GRAPH, ops["one"]) == 8 * 16 + 4 * 16
    assert saved_bytes(GRAPH, ops["two"]) == 8 * 4 + 2 * 4


def planned(*limits: Limit) -> Plan:
    setting = Setting("optimal", objective=Objective(limits=limits))
    return make_plan(GRAPH, Matcher(load_policy("fp8")), setting)


def test_the_plan_of_a_policy_rounds_all_without_limits() -> None:
    plan = planned()
    assert [d.op for d in plan.quantised] == ["one", "two"]
    assert saved_by(GRAPH, plan.by_op) == 192 + 40


@pytest.mark.parametrize(("bound", "ops"), [(3.0, 2), (2.5, 1), (1.5, 1), (0.5, 0)])
def test_within_a_limit_what_saves_most_rounds(bound: float, ops: int) -> None:
    plan = planned(Limit({KEYS["one"]: 1.0, KEYS["two"]: 2.0}, bound))
    assert [d.op for d in plan.quantised] == ["one", "two"][:ops]


def test_two_limits_are_kept_together() -> None:
    plan = planned(Limit({KEYS["one"]: 1.0}, 0.5), Limit({KEYS["two"]: 1.0}, 1.0))
    assert [d.op for d in plan.quantised] == ["two"]
    free = planned()
    assert plan.cost.lower_bound == plan.cost.total_bytes == free.cost.total_bytes
