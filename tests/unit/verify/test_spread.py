"""Ops that are kept full take no others with them, forward or back."""

from random import Random
from textwrap import dedent

import pytest

from amprewrite.ir import parse_graph
from amprewrite.passes import Setting, make_plan
from amprewrite.policy import Matcher, load_policy
from amprewrite.verify.fix import held
from tests.properties.placements import random_graph

STEPS = """
    %x: f32[8,8] input
    %w: f32[8,8] parameter
    first = linear(%x, %w) -> %a: f32[8,8]
    view = view(%a) -> %b: f32[8,8]
    other = linear(%x, %w) -> %c: f32[8,8]
    add = add(%b, %c) -> %d: f32[8,8]
    tanh = tanh(%d) -> %e: f32[8,8]
    mul = mul(%e, %e) -> %f: f32[8,8]
    last = linear(%f, %w) -> %y: f32[8,8]
    return %y
"""


def plans(graph, kept, policy="bf16"):
    """The low ops of a plan, of one with ops denied, and with the others held."""
    loaded = load_policy(policy)
    plan = make_plan(graph, Matcher(loaded), Setting())
    rules = [{"op_name": op, "class": "deny"} for op in kept]
    low = held(plan, graph, kept)
    rest = [{"op_name": op, "class": "allow"} for op in low]
    overrides = [], rules, [*rules, *rest]
    matchers = (Matcher(loaded, given) for given in overrides)
    found = (make_plan(graph, matcher, Setting()) for matcher in matchers)
    return low, [{d.op for d in one.lowered} for one in found]


@pytest.mark.parametrize(
    ("kept", "wanted"),
    [
        (["first"], ("view",)),  # the first on the way, though it only moves
        (["last"], ("mul",)),
        (["tanh"], ("add", "mul")),
        (["first", "add"], ("tanh",)),  # what is between them stays full
        (["first", "last"], ("view", "mul")),
    ],
)
def test_the_first_op_on_each_way_is_held(kept, wanted):
    low, (before, denied, after) = plans(parse_graph(dedent(STEPS).strip()), kept)
    assert low == wanted
    full = before - after
    assert full == {*kept, *(["view"] if "add" in kept else [])}
    assert full < before - denied


def test_a_value_that_moves_to_a_full_reader_is_not_rounded_on_the_way():
    text = dedent(STEPS).strip().replace("add = add(%b, %c)", "add = softmax(%b)")
    low, (before, _, after) = plans(parse_graph(text), ["first"])
    assert "view" not in low
    assert before - after == {"first", "view"}


@pytest.mark.parametrize("seed", range(40))
def test_no_more_ops_are_full_than_without_the_rules(seed):
    graph = random_graph(Random(seed))
    plan = make_plan(graph, Matcher(load_policy("bf16")), Setting())
    free = [d.op for d in plan.lowered if d.reason.is_overridable]
    if not free:
        return
    kept = Random(seed).sample(free, min(2, len(free)))
    _, (before, denied, after) = plans(graph, kept)
    assert set(kept) <= before - after <= before - denied
    classes = {op: plan.by_op[op].op_class for op in before - after - set(kept)}
    assert "promote" not in classes.values(), classes
