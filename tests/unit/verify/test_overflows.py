"""The ops that leave the range of a format are told from those after them."""

from math import inf
from textwrap import dedent

from amprewrite.ir import parse_graph
from amprewrite.passes import Setting, make_plan
from amprewrite.policy import Matcher, load_policy
from amprewrite.verify.blame import overflowing
from amprewrite.verify.rows import OpError

PROGRAM = """
    %x: f32[8,8] input
    %w: f32[8,8] parameter
    up = linear(%x, %w) -> %a: f32[8,8]
    view = view(%a) -> %b: f32[8,8]
    relu = gelu(%b) -> %c: f32[8,8]
    down = linear(%c, %w) -> %d: f32[8,8]
    norm = layer_norm(%d) -> %e: f32[8,8]
    last = linear(%e, %w) -> %y: f32[8,8]
    return %y
"""


def found(rows):
    graph = parse_graph(dedent(PROGRAM).strip())
    plan = make_plan(graph, Matcher(load_policy("fp16")), Setting())
    return overflowing(rows, plan, graph)


def row(op, largest=1.0, headroom=16.0, own=1e-4, nonfinite=3, **options):
    return OpError(
        op, op, op, "", "", "float16", own, inf, nonfinite,
        dtype="float16", largest=largest, headroom=headroom, **options,
    )  # fmt: skip


def test_ops_that_make_or_read_values_beyond_a_format_are_found_in_order():
    rows = [
        row("up", 1e5, -0.6),
        row("view", 1e5, -0.6),
        row("relu", 1e5, -0.6, own=0.0),  # exact on operands that are not finite
        row("down"),
        row("norm", own=inf),
        row("last"),
    ]
    ways = found(rows)
    assert list(ways) == ["up", "relu", "down", "norm"]
    assert ways["up"].startswith("makes 3 values that are not finite: its largest is")
    assert "-0.6 octaves left in float16" in ways["up"]
    assert ways["down"] == "reads %c, of which the largest is 1e+05, in float16"


def test_a_full_op_after_one_that_overflows_is_not_blamed():
    rows = [row("down", 1e5, -0.6), row("norm", own=inf), row("last")]
    assert list(found(rows)) == ["down"]


def test_an_inserted_cast_that_overflows_counts_as_its_readers():
    inserted = {"inserted": True, "nonfinite": 2}
    rows = [
        row("clamp", 1e5, -0.6, **inserted, readers=("cast",)),
        row("cast", 1e5, -0.6, **inserted, readers=("up",)),
        row("up"),
        row("down"),
    ]
    ways = found(rows)
    assert list(ways) == ["up"]
    assert "reads 2 values that are not finite" in ways["up"]
    alone = row("cast", 1e5, -0.6, **inserted)
    assert list(found([alone, row("up")])) == ["cast"]
