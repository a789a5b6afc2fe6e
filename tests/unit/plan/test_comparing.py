"""Values that are moved to a comparison are not rounded on the way."""

import pytest

from amprewrite.passes import Setting, make_plan
from amprewrite.passes.analysis.classify import classify
from amprewrite.passes.cost.cost import Objective
from amprewrite.passes.cost.cost_model import COMPILED
from amprewrite.plan import OUTPUT
from amprewrite.plan.comparing import chosen_outputs, compared, compared_moves
from amprewrite.policy import Matcher, load_policy
from tests.placement_problem import graph_of

BF16 = load_policy("bf16")

MAXIMUM = """
    %x: f32[512,512] input
    %y: f32[512,512] input
    %w: f32[512,512] parameter
    top = maximum(%x, %y) -> %m: f32[512,512]
    turn = transpose(%m) -> %t: f32[512,512]
    eq = eq(%t, %x) -> %e: b8[512,512]
    product = linear(%m, %w) -> %h: f32[512,512]
      | contracted=512
    other = transpose(%h) -> %o: f32[512,512]
    where = where(%e, %h, %o) -> %z: f32[512,512]
    last = linear(%z, %w) -> %r: f32[512,512]
      | contracted=512
    return %r
"""


def test_what_is_moved_to_a_comparison_is_found() -> None:
    graph = graph_of(MAXIMUM)
    matches = classify(graph, Matcher(BF16))
    classes = {name: match.op_class for name, match in matches.items()}
    assert compared_moves(graph, classes) == {"top", "turn"}
    assert compared(graph, classes) == {"eq", "top", "turn"}


def test_a_kept_op_that_gives_floats_moves_them_to_a_comparison() -> None:
    text = """
        %x: f32[8,64] input
        turn = transpose(%x) -> %t: f32[64,8]
        best = topk(%t) -> %b: f32[64,2]
        last = slice(%b) -> %l: f32[64,1]
        ge = ge(%t, %l) -> %e: b8[64,8]
        other = slice(%x) -> %o: f32[4,64]
        return %o
    """
    graph = graph_of(text)
    matches = classify(graph, Matcher(BF16))
    classes = {name: match.op_class for name, match in matches.items()}
    assert classes["best"] == "keep"
    assert compared_moves(graph, classes) == {"turn", "best", "last"}


@pytest.mark.parametrize("placement", ["paint", "optimal"])
def test_a_maximum_of_full_values_that_is_compared_is_full(placement: str) -> None:
    setting = Setting(placement, objective=Objective(COMPILED))
    plan = make_plan(graph_of(MAXIMUM), Matcher(BF16), setting)
    found = {d.op: d.precision for d in plan.decisions}
    assert (found["top"], found["turn"]) == ("float32", "float32")
    assert found["product"] == "bfloat16"


CHOSEN = """
    %x: f32[8,64] input
    %y: f32[8,64] input
    held = mul(%x, %y) -> %h: f32[8,64]
    best = amax(%h) -> %b: f32[8]
    other = exp(%y) -> %o: f32[8,64]
    turn = transpose(%h) -> %t: f32[64,8]
    clip = clamp(%x) -> %c: f32[8,64]
    return {}
"""


@pytest.mark.parametrize(
    ("outputs", "expected"),
    [
        ("%b, %h", {"b", "h"}),
        ("%b, %t", {"b", "t"}),
        ("%b, %o", set[str]()),
        ("%h, %t", set[str]()),
        ("%b", set[str]()),
        ("%c, %o", {"c"}),  # the caller has %x
        ("%b, %b", set[str]()),
    ],
)
def test_outputs_are_found_that_were_chosen_of_what_a_caller_has(
    outputs: str, expected: set[str]
) -> None:
    graph = graph_of(CHOSEN.format(outputs))
    matches = classify(graph, Matcher(BF16))
    classes = {name: match.op_class for name, match in matches.items()}
    assert chosen_outputs(graph, classes) == expected
    assert (OUTPUT in compared(graph, classes)) == bool(expected)
    assert ("best" in compared_moves(graph, classes)) == ("b" in expected)


SOFTMAX = """
    %x: f32[512,512] input
    %w: f32[512,512] parameter
    first = linear(%x, %w) -> %h: f32[512,512]
      | contracted=512
    turn = transpose(%h) -> %t: f32[512,512]
    most = amax(%t) -> %m: f32[512]
    wide = expand(%m) -> %b: f32[512,512]
    sub = sub({}) -> %s: f32[512,512]
    return %s
"""


@pytest.mark.parametrize(
    ("operands", "moves"),
    [
        ("%t, %b", {"most", "wide"}),
        ("%h, %b", {"turn", "most", "wide"}),
        ("%x, %b", ()),
    ],
)
def test_a_difference_from_a_maximum_is_a_comparison(
    operands: str, moves: set[str]
) -> None:
    graph = graph_of(SOFTMAX.format(operands))
    matches = classify(graph, Matcher(BF16))
    classes = {name: match.op_class for name, match in matches.items()}
    assert compared_moves(graph, classes) == set(moves)
    assert ("sub" in compared(graph, classes)) == bool(moves)
