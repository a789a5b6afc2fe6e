"""Which casts stand before a loop, and which at each of its turns."""

from dataclasses import replace

import pytest

from amprewrite.ir import ProgramGraph
from amprewrite.passes import Setting, make_plan
from amprewrite.passes.pipeline import situate
from amprewrite.passes.placement.casts import find_hoisted, loop_entries
from amprewrite.passes.placement.promote import place
from amprewrite.plan import Plan
from amprewrite.policy import Matcher, load_policy
from tests.placement_problem import graph_of, situation_of
from tests.plan_text import cast_lines

LOOP = """
    %x: f32[4,8] input
    %ws: f32[5,8,8] input
    %b: f32[4,8] input
    loop.in0 = enter(%b) -> %c: f32[4,8]
      | region="loop"
    loop.in1 = carry(%x) -> %h: f32[4,8]
      | region="loop"
    loop.in2 = enter(%ws) -> %w: f32[8,8]
      | region="loop"
    turn = transpose(%w) -> %t: f32[8,8]
      | region="loop" trips=5
    dot = matmul(%h, %t) -> %d: f32[4,8]
      | region="loop" accumulates=true trips=5
    add = add(%d, %c) -> %n: f32[4,8]
      | region="loop" trips=5
    loop.out0 = carry(%n) -> %y: f32[4,8]
      | trips=5
    return %y
"""


def plan_for(text: str | ProgramGraph, *, differentiable: bool) -> Plan:
    graph = graph_of(text) if isinstance(text, str) else text
    setting = Setting(keep_parameter_dtype=True, differentiable=differentiable)
    return make_plan(graph, Matcher(load_policy("bf16")), setting)


def hoisted(text: str) -> frozenset[str]:
    at = situation_of(text)
    outputs = tuple(at.graph.values[name].dtype for name in at.graph.outputs)
    at = situate(at.graph, at.policy, at.classes, outputs)
    entered = loop_entries(at.graph, "float32")
    at = replace(at, entries=entered)
    return find_hoisted(at, place(at))


def test_a_slice_that_is_read_low_is_cast_before_the_loop() -> None:
    assert hoisted(LOOP) == {"loop.in2"}
    inside, before = (
        cast_lines(plan_for(LOOP, differentiable=d)) for d in (True, False)
    )
    assert "%t: f32[8,8] -> bf16 for dot (in loop)" in inside
    assert "%ws: f32[5,8,8] -> bf16 for loop.in2" in before.splitlines()
    assert "%t" not in before
    assert "%w:" not in before


def test_nothing_else_changes() -> None:
    inside, before = (plan_for(LOOP, differentiable=d) for d in (True, False))
    moved = ("loop.in2", "turn")
    assert before.by_op["loop.in2"].why.startswith("a loop reads it in bfloat16 alone")
    for one, two in zip(inside.decisions, before.decisions, strict=True):
        assert (one == two) == (one.op not in moved)
    assert before.cost.total_bytes < inside.cost.total_bytes


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("trips=5", "trips=1"),  # nothing is gained
        ("add(%d, %c)", "add(%d, %w)"),  # read in both
        ('enter(%ws) -> %w: f32[8,8]\n      | region="loop"',
         'enter(%ws) -> %w: f32[8,8]\n      | region="loop" fence="left"'),
        ('| region="loop" accumulates=true', '| region="loop" masks=[1]'),
    ],
)  # fmt: skip
def test_what_is_left_in_the_body(old: str, new: str) -> None:
    changed = LOOP.replace(old, new)
    assert changed != LOOP
    assert not hoisted(changed)


def test_a_carry_a_branch_and_what_leaves_are_left_alone() -> None:
    branch = LOOP.replace("trips=5", "trips=1")
    assert not loop_entries(graph_of(branch), "float32")
    carried = LOOP.replace("enter(%ws)", "carry(%ws)")
    assert loop_entries(graph_of(carried), "float32") == {"loop.in0"}
    stacked = LOOP.replace(
        "    return %y",
        "    loop.out1 = leave(%w) -> %all: f32[5,8,8]\n      | trips=5\n    return %y",
    )
    assert not hoisted(stacked)


def test_what_nobody_reads_is_not_cast() -> None:
    text = LOOP.replace("matmul(%h, %t)", "matmul(%h, %c)")
    assert "loop.in2" not in hoisted(text)


def test_an_inner_loop_hands_on_to_the_outer_one() -> None:
    text = """
        %ws: f32[3,5,8,8] input
        %x: f32[4,8] input
        out.in0 = enter(%ws) -> %u: f32[5,8,8]
          | region="out"
        out.in1 = carry(%x) -> %h: f32[4,8]
          | region="out"
        in.in0 = enter(%u) -> %w: f32[8,8]
          | region="out/in" trips=3
        in.in1 = carry(%h) -> %g: f32[4,8]
          | region="out/in" trips=3
        dot = matmul(%g, %w) -> %d: f32[4,8]
          | region="out/in" trips=15
        in.out0 = carry(%d) -> %e: f32[4,8]
          | region="out" trips=15
        out.out0 = carry(%e) -> %y: f32[4,8]
          | trips=3
        return %y
    """
    assert hoisted(text) == {"out.in0", "in.in0"}
    full = text.replace("in.in1 =", "exp = exp(%u) -> %v: f32[5,8,8]\n          | "
                        'region="out" trips=3\n        in.in1 =', 1)  # fmt: skip
    assert hoisted(full) == {"in.in0"}
    casts = plan_for(full, differentiable=False).runtime_casts
    (weights,) = (cast for cast in casts if cast.value == "u")
    assert (weights.region, weights.trips, weights.uses) == ("out", 3, (("in.in0", 0),))


def test_what_is_written_in_place_is_not_hoisted() -> None:
    text = LOOP.replace(
        "turn = transpose(%w) -> %t: f32[8,8]",
        "relu = relu(%w) -> %r: f32[8,8] alias %w\n"
        '      | region="loop" trips=5 mutates=[0]\n'
        "    turn = transpose(%r) -> %t: f32[8,8]",
    )
    assert not hoisted(text)
