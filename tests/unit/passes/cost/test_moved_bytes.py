"""What casts and ops read and write: lookups, views, loops."""

from amprewrite.passes.cost.cost_model import cast_bytes, is_view, read_elements
from tests.placement_problem import graph_of

GRAPH = graph_of("""
    %x: f32[4,8] input
    %w: f32[8,8] parameter
    %t: f32[100,8] parameter
    %i: i64[4] input
    rows = embedding(%t, %i) -> %e: f32[4,8]
    linear = linear(%x, %w) -> %h: f32[4,8]
      | contracted=8
    view = view(%h) -> %v: f32[32] alias %h
    exp = exp(%v) -> %y: f32[32]
    return %y
""")


def test_a_cast_reads_and_writes_each_element_in_each_iteration() -> None:
    assert cast_bytes(10, 4, 2, trips=1) == 60
    assert cast_bytes(10, 4, 2, trips=3) == 180
    assert cast_bytes(10, 4, 2, trips=0) == 0


def test_a_lookup_reads_rows_of_its_table() -> None:
    rows, linear = GRAPH.op_by_name["rows"], GRAPH.op_by_name["linear"]
    assert (read_elements(GRAPH, rows, 0), read_elements(GRAPH, rows, 1)) == (32, 4)
    assert read_elements(GRAPH, linear, 1) == 64


def test_a_view_shares_the_storage_of_what_it_reads() -> None:
    assert [op.name for op in GRAPH.ops if is_view(GRAPH, op)] == ["view"]
