"""What is said of a low dtype whose range values leave."""

from dataclasses import replace

import pytest

from amprewrite.ir import parse_graph
from amprewrite.passes import Setting, make_plan
from amprewrite.plan import Plan
from amprewrite.plan.facts import is_narrow, overflow_warning
from amprewrite.policy import Matcher, load_policy

GRAPH = """
%x: f32[512,512] input
%w: f32[512,512] parameter
op = linear(%x, %w) -> %y: f32[512,512]
  | path="head" source="model.py:7" contracted=512
return %y
"""


def plan_of(policy: str) -> Plan:
    return make_plan(parse_graph(GRAPH), Matcher(load_policy(policy)), Setting())


@pytest.mark.parametrize(
    ("policy", "narrow"), [("fp16", True), ("bf16", False), ("off", False)]
)
def test_only_float16_is_narrow(policy: str, narrow: bool) -> None:  # noqa: FBT001  # a case
    assert is_narrow(plan_of(policy)) is narrow


def test_a_plan_that_lowers_nothing_is_not_looked_at() -> None:
    assert not is_narrow(replace(plan_of("fp16"), decisions=()))


def test_the_op_its_place_and_the_ways_out_are_named() -> None:
    plan = plan_of("fp16")
    message = overflow_warning(plan, plan.by_op["op"])
    assert message == (
        "outputs on args are not finite in float16, which ends at 65504, and finite in "
        "float32: the first is op (head, model.py:7); pass tolerance=, deny it, "
        'overrides=[{"op_name": "op", "class": "deny"}], or use bf16'
    )
    assert "the first op is not known; pass tolerance=" in overflow_warning(plan, None)
