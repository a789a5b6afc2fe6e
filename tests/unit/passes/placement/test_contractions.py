"""How contractions sum and are differentiated, as fields of the plan."""

from dataclasses import replace

import pytest

from amprewrite.ir import parse_graph
from amprewrite.passes import Setting, make_plan
from amprewrite.passes.cost.cost import Objective
from amprewrite.passes.cost.cost_model import EAGER
from amprewrite.plan.hardware import Kernels
from amprewrite.policy import Matcher, load_policy

TEXT = """%x: f32[4,8] input
%w: f32[8,8] parameter
%a: f32[4,1] input
%b: f32[1,8] input
low = matmul(%x, %w) -> %y: f32[4,8]
  | contracted=8 {sums}
outer = matmul(%a, %b) -> %o: f32[4,8]
  | contracted=1 {sums}
again = matmul(%y, %w) -> %z: f32[4,8]
  | contracted=8 {sums}
add = add(%z, %o) -> %s: f32[4,8]
return %s
"""


def fields(kernels, *, hands_over, policy="bf16", overrides=()):
    graph = parse_graph(TEXT.format(sums="accumulates=true" * hands_over))
    objective = Objective(replace(EAGER, kernels=kernels))
    matcher = Matcher(load_policy(policy), overrides)
    plan = make_plan(graph, matcher, Setting(objective=objective))
    return {
        d.op: (d.accumulator, d.derivative, d.derivative_accumulator)
        for d in plan.decisions
    }


LOW, FULL = "bfloat16", "float32"


@pytest.mark.parametrize("sums", ["low", "full", "operand"])
@pytest.mark.parametrize("wide", [True, False])
def test_where_a_program_can_choose_the_device_decides(wide, sums):
    found = fields(Kernels(wide, sums), hands_over=True)
    handed = {"low": LOW, "full": FULL, "operand": "operand"}[sums]
    assert found["low"] == (FULL if wide else LOW, LOW, handed)
    assert found["outer"] == (FULL, LOW, handed)
    assert found["add"] == ("", "", "")


def test_where_the_framework_differentiates_the_op_says_it():
    found = fields(Kernels(accumulators=True), hands_over=False)
    assert found["low"] == (LOW, LOW, "operand")
    assert found["outer"] == (FULL, FULL, "operand")


def test_what_a_rule_denies_is_differentiated_in_full():
    rule = {"op_name": "outer", "class": "deny"}
    found = fields(Kernels(), hands_over=True, overrides=[rule])
    assert found["outer"] == (FULL, FULL, "operand")


def test_a_policy_that_lowers_nothing_says_nothing():
    found = fields(Kernels(), hands_over=True, policy="off")
    assert set(found.values()) == {("", "", "")}
