"""Contractions round to 8 bits where that saves more than its error costs."""

from amprewrite.passes import Setting, make_plan
from amprewrite.passes.cost.cost import Objective
from amprewrite.passes.cost.eight_bits import saved_by, saved_bytes, worth_rounding
from amprewrite.plan.sensitivity import EightBits
from amprewrite.policy import Matcher, load_policy
from amprewrite.policy.contract import Contract
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


def test_the_error_must_cost_no_more_than_the_bytes() -> None:
    formats = dict.fromkeys(KEYS, FORMATS)
    assert worth_rounding(GRAPH, formats, Objective()) == formats
    dear = Objective(errors={KEYS["one"]: 192, KEYS["two"]: 41})
    assert worth_rounding(GRAPH, formats, dear) == {"one": FORMATS}


def test_the_plan_of_a_policy_rounds_what_is_worth_it() -> None:
    dear = Objective(errors={KEYS["two"]: 41})
    setting = Setting("optimal", objective=dear)
    plan = make_plan(GRAPH, Matcher(load_policy("fp8")), setting)
    assert [d.op for d in plan.quantised] == ["one"]
    assert saved_by(GRAPH, plan.by_op) == 192
