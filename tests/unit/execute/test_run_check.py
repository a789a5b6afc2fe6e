"""What the check of a run looks at, and how it words what it sees."""

from dataclasses import replace

import numpy as np
import pytest

from amprewrite.errors import (
    AmpWarning,
    ExactArgumentWarning,
    LoopWarning,
    Notice,
    OverflowWarning,
    warn,
)
from amprewrite.execute.run_check import Extent, RunCheck, is_narrow, limit
from amprewrite.ir import ProgramGraph, parse_graph
from amprewrite.passes import Setting, make_plan
from amprewrite.plan import Plan
from amprewrite.policy import Matcher, load_policy

GRAPH = """
%x: f32[512,512] input
%w: f32[512,512] parameter
op = linear(%x, %w) -> %y: f32[512,512]
  | path="head" source="model.py:7" contracted=512
return %y
"""

PHASES = """
%x: f32[8,8] input
%w: f32[8,8] parameter
matmul = matmul(%x, %w) -> %p: f32[8,8]
  | contracted=8
scaled = mul(%p, %p) -> %s: f32[8,8]
moved = reshape(%s) -> %m: f32[64]
sin = sin(%m) -> %y: f32[64]
  | source="model.py:9"
return %y
"""

LOOP = """
%x: f32[8,8] input
%w: f32[8,8] parameter
matmul = matmul(%x, %w) -> %p: f32[8,8]
  | contracted=8 region="while/test"
gt = gt(%p) -> %g: bool[]
  | region="while/test" decides=true source="model.py:3"
return %x
"""


def parsed(text: str) -> ProgramGraph:
    graph = parse_graph(text.replace(" decides=true", ""))
    ops = tuple(replace(op, decides=op.name == "gt") for op in graph.ops)
    return replace(graph, ops=ops)


def plan_of(policy: str, text: str = GRAPH) -> Plan:
    return make_plan(parsed(text), Matcher(load_policy(policy)), Setting())


def check_of(policy: str, text: str) -> RunCheck:
    check = RunCheck.of(parsed(text), plan_of(policy, text))
    assert check is not None
    return check


@pytest.mark.parametrize(
    ("policy", "narrow"),
    [("fp16", True), ("bf16", False), ("off", False), ("fp8", True)],
)
def test_only_float16_and_8_bits_are_narrow(policy: str, narrow: bool) -> None:  # noqa: FBT001  # a case
    assert is_narrow(plan_of(policy)) is narrow


def test_a_plan_that_lowers_nothing_is_not_looked_at() -> None:
    plan = replace(plan_of("fp16"), decisions=())
    assert not is_narrow(plan)
    assert RunCheck.of(parse_graph(GRAPH), plan_of("bf16")) is None
    assert RunCheck.of(parse_graph(GRAPH), plan_of("off")) is None


def test_the_op_its_place_and_the_ways_out_are_named() -> None:
    check = check_of("fp16", GRAPH)
    check.saw_overflow(["op"], Extent(3, 512, 1e5))
    check.saw_overflow(["other"], Extent(9, 9, 1e6))  # the first is told
    (line,) = check.notices()
    assert line == (
        "op (head, model.py:7) is not finite in float16, which reaches from 6e-08 to "
        "65504, and finite in float32: 3 of 512 elements, of up to 1e+05; deny op, "
        'overrides=[{"op_name": "op", "class": "deny"}], or pass tolerance=, or use '
        "bf16"
    )


def test_a_line_that_the_plan_has_is_not_told_again() -> None:
    check = check_of("fp16", GRAPH)
    check.saw_overflow(["op"], Extent(3, 512, 1e5))
    check.plan = check.plan.with_warnings(*check.notices())
    assert check.notices() == ()


def test_a_cast_without_a_neighbour_in_the_plan_has_no_rule() -> None:
    check = check_of("fp16", GRAPH)
    check.saw_overflow(["unknown"], Extent(1, 2, 7e4))
    (line,) = check.notices()
    assert line.startswith(
        "a cast that the plan does not name is not finite in float16"
    )
    assert "overrides" not in line


def test_what_is_full_by_demand_is_not_looked_at() -> None:
    graph = parsed(PHASES)
    assert RunCheck.of(graph, plan_of("bf16", PHASES)) is None
    assert set(check_of("autocast-cpu", PHASES).exact) == {"sin"}


def test_an_argument_counts_beyond_its_own_error() -> None:
    large = np.full(64, 1e7, np.float32)  # a radian is its last digit
    check = check_of("autocast-cpu", PHASES)
    check.saw_argument("sin", [large], [large + 1])
    check.saw_argument("sin", [np.zeros(64)], [np.full(64, 0.04)])
    assert check.notices() == ()
    few = np.zeros(1000)
    few[0] = 1
    check.saw_argument("sin", [np.zeros(1000)], [few])
    assert check.notices() == ()
    check.saw_argument("sin", [np.zeros(4)], [np.array([0.5, 0, 0, 0])])
    (line,) = check.notices()
    assert line == (
        "sin (model.py:9) reads an argument that has to be exact, and it is rounded by "
        "up to 0.5 radians (more than 0.05 in 25% of 4 elements); deny sin, scaled, "
        'matmul, overrides=[{"op_name": "sin", "class": "deny"}, {"op_name": "scaled", '
        '"class": "deny"}, {"op_name": "matmul", "class": "deny"}], or pass tolerance='
    )


@pytest.mark.parametrize(
    ("op", "full", "low", "unit"),
    [
        ("round", [3.0], [3.2], "0.2 steps"),
        ("sinc", [1.0], [1.5], "0.5 half turns"),
        ("remainder", [10.0, 5.0], [11.0, 5.0], "0.2 multiples"),
        ("bucketize", [2.5, [1.0, 2.0, 4.0]], [3.5, [1.0, 2.0, 4.0]], "0.5 bins"),
        ("searchsorted", [[1.0, 2.0, 4.0], 2.5], [[1.0, 2.0, 4.0], 3.5], "0.5 bins"),
        ("polar", [1.0, 3.0], [2.0, 3.2], "0.2 radians"),
        ("exp", [1 + 3j], [2 + 3.2j], "0.2 radians"),
        ("floor", [1.0], [np.inf], "inf steps"),
    ],
)
def test_each_op_has_its_unit(op: str, full: list, low: list, unit: str) -> None:
    dtype = "c64" if op == "exp" else "f32"
    text = PHASES.replace("sin(%m)", f"{op}(%m)")
    text = text.replace("reshape(%s) -> %m: f32[64]", f"reshape(%s) -> %m: {dtype}[64]")
    check = check_of("autocast-cpu", text)
    check.saw_argument("sin", full, low)
    assert f"by up to {unit}" in check.notices()[0]


def test_operands_of_another_form_are_passed_by() -> None:
    text = PHASES.replace("sin(%m)", "bucketize(%m)")
    check = check_of("autocast-cpu", text)
    check.saw_argument("sin", [np.zeros(3)], [np.ones(3)])
    check.saw_argument("sin", [np.zeros(3), np.zeros((2, 2))], [np.ones(3)] * 2)
    assert check.notices() == ()


def test_steps_are_compared() -> None:
    check = check_of("autocast-cpu", LOOP)
    assert check.loops == {"gt"}
    check.saw_loop("gt", 61, 61)
    assert check.notices() == ()
    check.saw_loop("gt", 61, 58)
    rule = 'deny matmul, overrides=[{"op_name": "matmul", "class": "deny"}]'
    (line,) = check.notices()
    assert line == (
        "the loop that gt (model.py:3) ends takes 58 steps in bfloat16 and 61 in "
        f"float32; {rule}, or pass tolerance="
    )


def test_a_loop_that_was_stopped_has_not_ended() -> None:
    check = check_of("autocast-cpu", LOOP)
    check.saw_loop("gt", 61, limit(61))
    (line,) = check.notices()
    assert "has not ended after 620 steps in bfloat16, and ends after 61" in line


@pytest.mark.parametrize("kind", [OverflowWarning, ExactArgumentWarning, LoopWarning])
def test_each_notice_has_a_class_of_its_own(kind: type[AmpWarning]) -> None:
    named = {cls.category: cls for cls in Notice.__subclasses__()}
    with pytest.warns(kind, match="text") as caught:
        warn(named[kind]("text"))
    assert type(caught[0].message) is kind
    assert issubclass(kind, AmpWarning)
