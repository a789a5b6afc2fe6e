"""Contractions as equal products of matrices."""

import pytest

from amprewrite.passes.cost.cost_model import (
    ROWS_UNKNOWN,
    Work,
    multiplications,
    work_of,
)
from tests.placement_problem import graph_of

GRAPH = graph_of("""
    %x: f32[4,8] input
    %w: f32[16,8] parameter
    %b: f32[16] parameter
    %v: f32[8] input
    %q: f32[2,3,32,8] input
    %k: f32[2,3,64,8] input
    %i: f32[1,8,10,10] input
    %f: f32[16,8,3,3] parameter
    %n: f32[s0,8] input
    linear = linear(%x, %w, %b) -> %h: f32[4,16]
      | contracted=8
    addmm = addmm(%b, %x, %w) -> %a: f32[4,16]
      | contracted=8
    mv = mv(%w, %v) -> %m: f32[16]
      | contracted=8
    bmm = matmul(%q, %k) -> %s: f32[2,3,32,64]
      | contracted=8
    attention = scaled_dot_product_attention(%q, %k, %k) -> %o: f32[2,3,32,8]
    conv = conv(%i, %f) -> %c: f32[1,16,10,10]
      | contracted=72
    einsum = einsum(%x, %w) -> %e: f32[4,16]
    varies = linear(%n, %w) -> %y: f32[s0,16]
      | contracted=8
    return %y
""")


@pytest.mark.parametrize(
    ("op", "work"),
    [
        ("linear", Work("product", 512, 1, 4, 32 + 128 + 16 + 64)),
        ("addmm", Work("product", 512, 1, 4, 32 + 128 + 16 + 64)),
        ("mv", Work("product", 128, 1, 1, 128 + 8 + 16)),
        ("bmm", Work("batched", 6 * 32 * 64 * 8, 6, 8, 1536 + 3072 + 12288)),
        ("attention", Work("attention", 2 * 1536 * 64, 6, 8, 1536 + 2 * 3072 + 1536)),
        ("conv", Work("convolution", 1600 * 72, 1, 16, 800 + 1152 + 1600)),
        ("einsum", Work("product", 512, 1, 8, 32 + 128 + 64)),
        ("varies", Work("product", 128, 1, 8, 8 + 128 + 16)),
    ],
)
def test_extents_follow_from_sizes(op: str, work: Work) -> None:
    assert work_of(GRAPH, GRAPH.op_by_name[op]) == work


def test_an_extent_that_varies_is_no_thin_product() -> None:
    graph = graph_of("""
        %n: f32[s0,512] input
        %w: f32[512,512] parameter
        linear = linear(%n, %w) -> %y: f32[s0,512]
          | contracted=512
        return %y
    """)
    found = work_of(graph, graph.ops[0])
    assert (found.thin, found.macs) == (ROWS_UNKNOWN, 512 * 512)


def test_multiplications_are_counted() -> None:
    assert multiplications(GRAPH, GRAPH.op_by_name["conv"]) == 1600 * 72


def test_an_op_without_results_or_floats_is_the_smallest_work() -> None:
    graph = graph_of("""
        %i: i64[4] input
        odd = matmul(%i, %i) -> %y: i64[0]
        return %y
    """)
    assert work_of(graph, graph.ops[0]).macs == 1
