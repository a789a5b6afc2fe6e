"""Residual additions of a transformer block, as text."""

from amprewrite.ir import parse_graph
from amprewrite.passes.placement.contractions import (
    last_contractions,
    residual_adds,
)

BLOCK = """%x: f32[4,8] input
%pos: f32[4,8] parameter
%w: f32[8,8] parameter
%b: f32[8] parameter
embed = add(%x, %pos) -> %e: f32[4,8]
norm = layer_norm(%e) -> %n: f32[4,8]
q = linear(%n, %w) -> %q: f32[4,8]
k = linear(%n, %w) -> %k: f32[4,8]
scores = matmul(%q, %k) -> %s: f32[4,8]
out = linear(%s, %w) -> %o: f32[4,8]
bias = add(%o, %b) -> %p: f32[4,8]
drop = dropout(%p) -> %d: f32[4,8]
view = view(%e) -> %v: f32[4,8]
one = add(%v, %d) -> %r: f32[4,8]
up = linear(%r, %w) -> %u: f32[4,8]
gate = linear(%r, %w) -> %g: f32[4,8]
gated = mul(%u, %g) -> %h: f32[4,8]
down = linear(%h, %w) -> %m: f32[4,8]
two = add(%m, %r) -> %y: f32[4,8]
twice = add(%y, %y) -> %z: f32[4,8]
head = linear(%z, %w) -> %l: f32[4,8]
return %l
"""
GRAPH = parse_graph(BLOCK)


def test_additions_of_a_branch_to_what_it_depends_on():
    found = [
        (add.op.name, add.op.operands[add.skip], add.op.operands[add.branch])
        for add in residual_adds(GRAPH)
    ]
    assert found == [("one", "v", "d"), ("two", "r", "m")]


def test_constant_factors_are_looked_through():
    """Those of a unit-scaled residual: both paths are scaled after the split."""
    text = BLOCK.replace(
        "view = view(%e) -> %v: f32[4,8]",
        "split = scale(%e) -> %t: f32[4,8]\nview = mul(%t) -> %v: f32[4,8]",
    )
    graph = parse_graph(text)
    assert [add.op.name for add in residual_adds(graph)] == ["one", "two"]
    assert last_contractions(graph) == {"out", "down"}


def test_what_only_moves_a_value_is_no_branch():
    graph = parse_graph(
        "%x: f32[4,8] input\n"
        "view = view(%x) -> %v: f32[4,8]\n"
        "add = add(%v, %x) -> %y: f32[4,8]\n"
        "return %y\n"
    )
    assert not list(residual_adds(graph))


def test_the_last_contractions_are_output_projection_and_down_projection():
    assert last_contractions(GRAPH) == {"out", "down"}


def test_parallel_branches():
    text = BLOCK.replace("up = linear(%r,", "up = linear(%n,").replace(
        "two = add(%m, %r)", "two = add(%m, %e)"
    )
    graph = parse_graph(text)
    assert [add.op.name for add in residual_adds(graph)] == ["one", "two"]
    assert last_contractions(graph) == {"out", "down"}


def test_branches_that_read_the_same_value_and_are_added_one_by_one():
    """x + attention(n) + mlp(n): the second branch does not depend on the first sum."""
    text = BLOCK.replace("up = linear(%r,", "up = linear(%n,")
    graph = parse_graph(text.replace("gate = linear(%r,", "gate = linear(%n,"))
    assert [add.op.name for add in residual_adds(graph)] == ["one", "two"]
    assert last_contractions(graph) == {"out", "down"}


def test_a_sum_without_a_contraction_between_is_arithmetic():
    graph = parse_graph(
        "%x: f32[4,8] input\n"
        "cube = integer_pow(%x) -> %c: f32[4,8]\n"
        "add = add(%x, %c) -> %y: f32[4,8]\n"
        "return %y\n"
    )
    assert not list(residual_adds(graph))
