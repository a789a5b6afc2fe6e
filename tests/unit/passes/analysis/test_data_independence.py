"""Draws and positions that are compared, or computed with."""

import pytest

from amprewrite.passes import Setting, make_plan
from amprewrite.passes.analysis.classify import classify
from amprewrite.passes.analysis.values import exact_ops
from amprewrite.policy import Matcher, load_policy
from tests.placement_problem import graph_of

BF16 = load_policy("bf16")

DROPOUT = """
    %x: f32[512,512] input
    %w: f32[512,512] parameter
    %key: u32[2] input
    linear = linear(%x, %w) -> %h: f32[512,512]
      | contracted=512
    bits = random_bits(%key) -> %b: u32[512,512]
    bitcast = bitcast(%b) -> %f: f32[512,512]
    draw = add(%f) -> %u: f32[512,512]
      | literals=[-1.0]
    turn = transpose(%u) -> %t: f32[512,512]
    noise = mul(%u) -> %n: f32[512,512]
      | literals=[2.0]
    lt = lt(%t) -> %m: b8[512,512]
      | literals=[0.9]
    where = where(%m, %h, %n) -> %y: f32[512,512]
    return %y
"""


def exact(text: str) -> frozenset[str]:
    graph = graph_of(text)
    return exact_ops(graph, classify(graph, Matcher(BF16)))


def test_what_is_drawn_and_compared_decides() -> None:
    assert exact(DROPOUT) == {"bitcast", "draw", "turn", "noise"}


def test_arithmetic_on_a_draw_is_exact_and_its_movement_may_be_low() -> None:
    found = exact(DROPOUT.replace("lt(%t)", "lt(%h)"))
    assert found == {"bitcast", "draw", "noise"}


def test_what_a_denied_op_reads_of_a_draw_is_exact() -> None:
    normal = DROPOUT.replace("lt = lt(%t) -> %m: b8", "tan = tan(%t) -> %m: f32")
    assert "turn" in exact(normal)


def test_a_draw_that_meets_data_may_be_rounded() -> None:
    met = DROPOUT.replace("noise = mul(%u)", "noise = mul(%u, %h)")
    assert exact(met) == {"bitcast", "draw", "turn"}


def test_what_has_data_in_it_may_be_rounded_as_before() -> None:
    assert exact(DROPOUT.replace("bitcast(%b)", "bitcast(%x)")) == frozenset()


def test_constants_and_positions_have_no_data() -> None:
    text = """
        %x: f32[8] input
        %c: f32[8] constant
        iota = iota() -> %i: f32[8]
        add = add(%i, %c) -> %p: f32[8]
        gt = gt(%x, %p) -> %m: b8[8]
        return %m
    """
    assert exact(text) == {"iota", "add"}
    assert exact(text.replace("%c: f32[8] constant", "%c: f32[8] input")) == set()


@pytest.mark.parametrize("policy", ["bf16", "fp16"])
def test_placement_keeps_them_full(policy: str) -> None:
    matcher = Matcher(load_policy(policy))
    plan = make_plan(graph_of(DROPOUT), matcher, Setting("optimal"))
    made = {d.op: d for d in plan.decisions}
    assert made["draw"].precision == made["turn"].precision == "float32"
    assert made["draw"].why.endswith("a position or a draw is exact")
    assert made["linear"].precision != "float32"
