"""A plan that was edited is applied as it says, or refused: casts, storage, totals."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amprewrite.errors import PlanMismatchError
from amprewrite.ir import ProgramGraph, parse_graph
from amprewrite.passes import Setting, make_plan
from amprewrite.plan import OUTPUT, Plan
from amprewrite.plan.validation.check import check_fits, check_plan
from amprewrite.policy import Matcher, Policy
from tests.plan_text import plan_of
from tests.properties.graphs import graphs, policies

TEXT = """%x: f32[4,8] input
%w: f32[8,8] parameter
%b: f32[8] parameter
linear = linear(%x, %w, %b) -> %h: f32[4,8]
  | contracted=8
again = linear(%h, %w, %b) -> %g: f32[4,8]
  | contracted=8
exp = exp(%g) -> %e: f32[4,8]
sum = sum(%h) -> %s: f32[4]
  | has_dtype_argument=true
return %e, %s
"""
GRAPH = parse_graph(TEXT)


def mistakes(plan: Plan, graph: ProgramGraph = GRAPH) -> str:
    with pytest.raises(PlanMismatchError) as caught:
        check_plan(graph, plan)
    assert "a plan is applied as it is" in str(caught.value)
    return "\n".join(caught.value.mistakes)


def with_cast(name: str, of: str = "", /, **changes: Any) -> Plan:
    """The plan with a change in the cast of one value."""
    plan = plan_of(TEXT)
    (old,) = (c for c in plan.casts if (c.value, c.folding) == (name, of))
    casts = tuple(replace(c, **changes) if c is old else c for c in plan.casts)
    return replace(plan, casts=casts)


def test_the_plan_itself_is_right() -> None:
    plan = plan_of(TEXT)
    check_plan(GRAPH, plan)
    found = {(c.value, c.folding) for c in plan.casts}
    assert {("x", ""), ("w", "storage"), ("g", ""), ("h", "dtype")} <= found


@given(graph=graphs(), policy=policies(), training=st.booleans(), optimal=st.booleans())
def test_what_the_passes_make_fits(
    graph: ProgramGraph, policy: Policy, *, training: bool, optimal: bool
) -> None:
    placement = "optimal" if optimal else "promote"
    setting = Setting(placement, keep_parameter_dtype=training)
    plan = make_plan(graph, Matcher(policy), setting)
    check_fits(graph, plan, training=training)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"value": "y"}, "the program has no such value"),
        ({"uses": (("linear", 1),)}, "operand 1 of linear is %w"),
        ({"uses": (("linear", 9),)}, "linear has 3 operands, no operand 9"),
        ({"uses": (("tanh", 0),)}, "the program has no op 'tanh'"),
        ({"uses": ((OUTPUT, 0),)}, "operand 0 of output is %e"),
        ({"uses": ()}, "has no uses"),
        ({"uses": (("linear", 0), ("linear", 0))}, "names a use twice"),
        ({"to_dtype": "float16"}, "reads operand 0, %x, in bfloat16; it is float16"),
        ({"to_dtype": "float32"}, "from float32 to itself"),
        ({"from_dtype": "float64"}, "starts from float64 at linear, where it is float"),
        ({"shape": (4,)}, "shape has 1 extents, the value has 2"),
        ({"producer": "exp"}, "producer is 'exp', not the op that makes it"),
        ({"region": "loop"}, "no reader is in region 'loop'"),
        ({"trips": 7}, "with 7 trips"),
        ({"folded": True}, "folded is True with folding ''"),
        ({"folding": "kernel"}, "folded is False with folding 'kernel'"),
        (
            {"folding": "kernel", "folded": True, "bytes": 0},
            "linear cannot do it itself (folding 'kernel')",
        ),
        (
            {"folding": "dtype", "folded": True, "bytes": 0},
            "linear cannot do it itself (folding 'dtype')",
        ),
        (
            {"folding": "copy", "folded": True, "bytes": 0},
            "folding 'copy' of a value that is no weight",
        ),
        (
            {"folding": "storage", "folded": True, "bytes": 0},
            "folding 'storage' of a value that is no weight",
        ),
        ({"bytes": 1}, "cost: says"),
    ],
)
def test_a_cast_that_cannot_be_is_named(changes: dict[str, Any], said: str) -> None:
    assert said in mistakes(with_cast("x", **changes))


def test_only_casts_to_low_saturate() -> None:
    check_plan(GRAPH, with_cast("x", saturate=True))
    assert "saturate is only for" in mistakes(with_cast("g", saturate=True))
    assert "saturate is only for" in mistakes(with_cast("w", "storage", saturate=True))


def test_a_missing_cast_is_missed() -> None:
    plan = plan_of(TEXT)
    fewer = replace(plan, casts=tuple(c for c in plan.casts if c.value != "x"))
    assert mistakes(fewer) == "linear: reads operand 0, %x, in bfloat16; it is float32"


def test_storage_and_its_casts_agree() -> None:
    plan = plan_of(TEXT)
    assert "storage: lacks %w as bfloat16" in mistakes(replace(plan, storage=()))
    more = (*plan.storage, ("x", "bfloat16"))
    assert "storage of %x as bfloat16: has no cast" in mistakes(
        replace(plan, storage=more)
    )
    half = with_cast("w", "storage", uses=(("linear", 1),))
    assert "is for a weight, with all its readers" in mistakes(half)
    assert "while the parameters are trained" in mistakes(replace(plan, training=True))


def test_outputs_leave_in_the_dtype_that_is_said() -> None:
    plan = plan_of(TEXT)
    low = replace(plan, outputs=("bfloat16", "float32"))
    assert mistakes(low) == "output: reads operand 0, %e, in bfloat16; it is float32"
    assert "outputs: 1 dtypes for 2 outputs" in mistakes(replace(plan, outputs=("f",)))


def test_a_cast_is_of_one_version_of_its_value() -> None:
    text = """%x: f32[8,8] input
%w: f32[8,8] parameter
one = linear(%x, %w) -> %h: f32[8,8]
write = add(%x, %h) -> %z: f32[8,8] alias %x
  | mutates=[0]
two = linear(%x, %w) -> %g: f32[8,8]
return %g, %z
"""
    graph, plan = parse_graph(text), plan_of(text)
    check_plan(graph, plan)
    one, two = (c for c in plan.casts if c.value == "x" and c.to_dtype == plan.low)
    merged = replace(one, uses=(*one.uses, *two.uses))
    casts = tuple(merged if c is one else c for c in plan.casts if c is not two)
    assert "write writes to it between its readers" in mistakes(
        replace(plan, casts=casts), graph
    )


VIEWED = """%x: f32[64,64] input
%w: f32[64,64] parameter
one = linear(%x, %w) -> %h: f32[64,64]
part = slice(%h) -> %v: f32[2,64] alias %h
return %v, %h
"""


def test_outputs_that_are_views_are_cast_from_what_they_view() -> None:
    graph, plan = parse_graph(VIEWED), plan_of(VIEWED)
    (cast,) = [c for c in plan.casts if ("output", 0) in c.uses]
    assert (cast.value, cast.uses) == ("h", (("output", 0), ("output", 1)))
    check_plan(graph, plan)
    alone = replace(cast, value="v")
    casts = tuple(alone if c is cast else c for c in plan.casts)
    with pytest.raises(PlanMismatchError, match="operand 0 of output is %h"):
        check_plan(graph, replace(plan, casts=casts))
