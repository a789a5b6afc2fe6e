"""A decision that was edited: what an op cannot do is named."""

from dataclasses import replace
from typing import Any

import pytest

from amprewrite.ir import parse_graph
from amprewrite.plan.validation.check import decision_mistakes
from tests.plan_text import plan_of

TEXT = """%x: f32[4,8] input
%i: i64[4] input
%w: f32[8,8] parameter
linear = linear(%x, %w) -> %h: f32[4,8]
  | contracted=8
dot = matmul(%h, %w) -> %g: f32[4,8]
  | contracted=8 accumulates=true
exp = exp(%g) -> %e: f32[4,8]
opaque = scan(%e) -> %s: f32[4,8]
  | fence="a closed box"
cast = cast(%s) -> %c: f32[4,8]
  | dtype_argument="float32"
return %c, %i
"""
GRAPH = parse_graph(TEXT)
LOW, FULL = "bfloat16", "float32"


def mistakes(op: str, **changes: Any) -> str:
    plan = plan_of(TEXT)
    decision = replace(plan.by_op[op], **changes)
    return "; ".join(decision_mistakes(GRAPH, GRAPH.op_by_name[op], decision, plan))


def test_what_the_passes_decide_is_right() -> None:
    assert [mistakes(op.name) for op in GRAPH.ops] == [""] * 5


def test_what_leads_may_be_written_in_place() -> None:
    """A low tensor that is filled with a full one: the kernel takes both."""
    text = """%x: f32[4,8] input
%m: bool[4,8] input
%v: f32[] input
%w: f32[8,8] parameter
linear = linear(%x, %w) -> %h: f32[4,8]
  | contracted=8
fill = masked_fill(%h, %m, %v) -> %f: f32[4,8] alias %h
  | mutates=[0] operand_rule="lead"
last = linear(%f, %w) -> %y: f32[4,8]
  | contracted=8
return %y
"""
    graph, plan = parse_graph(text), plan_of(text)
    assert plan.by_op["fill"].operands == (LOW, "bool", FULL)
    assert not list(
        decision_mistakes(graph, graph.op_by_name["fill"], plan.by_op["fill"], plan)
    )


@pytest.mark.parametrize(
    ("op", "changes", "said"),
    [
        ("linear", {"precision": FULL}, "computes in float32 and reads bfloat16"),
        ("linear", {"precision": "float16"}, "want bfloat16 or float32"),
        ("linear", {"precision": ""}, "want bfloat16 or float32"),
        ("linear", {"op_class": "deny"}, "is deny and computes in bfloat16"),
        ("linear", {"op_class": "keep"}, "has sums or a derivative of its own"),
        ("linear", {"canonical": "conv"}, "canonical is 'conv', and the op is linear"),
        ("linear", {"operands": (LOW,)}, "has dtypes for 1 operands and 1 results"),
        ("linear", {"operands": (LOW, "int64")}, "%w of dtype float32 cannot be 'int"),
        ("linear", {"operands": (FULL, FULL)}, "computes in bfloat16 and reads float"),
        ("linear", {"results": (FULL,)}, "computes in bfloat16 and makes float32"),
        ("linear", {"accumulator": FULL}, "the framework has ('bfloat16', "),
        ("linear", {"derivative": FULL}, "the framework has ('bfloat16', "),
        ("exp", {"precision": LOW}, "is deny and computes in bfloat16; want float32"),
        ("exp", {"operands": (LOW,)}, "computes in float32 and reads bfloat16"),
        ("exp", {"results": (LOW,)}, "computes in float32 and makes bfloat16"),
        ("exp", {"derivative": LOW}, "and is no contraction"),
        ("dot", {"accumulator": ""}, "hands over '' for a result of float32"),
        ("dot", {"accumulator": LOW}, "hands over 'bfloat16' for a result of float"),
        ("dot", {"derivative": FULL}, "computes in bfloat16, differentiated in 'float"),
        ("dot", {"derivative_accumulator": ""}, "its derivatives hand over ''"),
        ("opaque", {"op_class": "allow"}, "must not be touched: a closed box"),
        ("opaque", {"precision": LOW}, "is keep and computes in 'bfloat16', which it"),
        (
            "cast",
            {"precision": LOW, "op_class": "follow"},
            "makes float32 and computes",
        ),
    ],
)
def test_what_cannot_be_is_named(op: str, changes: dict[str, Any], said: str) -> None:
    assert said in mistakes(op, **changes)


def test_what_was_promoted_is_read_as_it_was() -> None:
    text = """%x: f32[4] input
%y: bf16[4] input
add = add(%x, %y) -> %z: f32[4]
  | reads=["float32", "float32"]
return %z
"""
    graph, plan = parse_graph(text), plan_of(text, "promote")
    op, found = graph.ops[0], plan.decisions[0]
    assert not list(decision_mistakes(graph, op, found, plan))
    low = replace(found, operands=(FULL, LOW), precision=LOW)
    said = "; ".join(decision_mistakes(graph, op, low, plan))
    assert "its operands promote to float32, float32" in said
    assert "computes in 'bfloat16', which it does not read" in said


def test_8_bit_formats_are_those_of_contractions() -> None:
    formats = {"forward": "float8_e4m3fn", "backward": "float8_e5m2"}
    assert mistakes("linear", **formats, scaling="current") == ""
    assert "no scaling" in mistakes("linear", **formats)
    assert "no 8-bit format" in mistakes("linear", scaling="none")
    assert "no contraction" in mistakes("exp", **formats, scaling="none")
