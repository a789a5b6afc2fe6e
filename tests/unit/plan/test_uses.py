"""Who uses a value, and which casts take its place."""

from textwrap import dedent

from amprewrite.ir import Op, parse_graph
from amprewrite.plan.uses import (
    dtypes_read,
    is_at_definition,
    output_sources,
    uses_of,
    view_path,
)
from tests.plan_text import plan_of

WRITTEN = """%x: f32[4,8] input
%w: f32[8,8] parameter
one = linear(%x, %w) -> %h: f32[4,8]
view = view(%h) -> %v: f32[32] alias %h
exp = exp(%v) -> %a: f32[32] alias %h
  | mutates=[0]
two = linear(%h, %w) -> %b: f32[4,8]
return %h, %b
"""


def test_an_output_is_a_use() -> None:
    graph = parse_graph(WRITTEN)
    assert [*uses_of(graph, "h")] == [("view", 0), ("two", 0), ("output", 0)]
    assert [*uses_of(graph, "w")] == [("one", 1), ("two", 1)]


def test_what_is_written_in_full_is_cast_where_it_is_made() -> None:
    graph, plan = parse_graph(WRITTEN), plan_of(WRITTEN)
    sources = output_sources(graph)
    (cast,) = [c for c in plan.casts if is_at_definition(graph, c, sources)]
    assert (cast.value, cast.to_dtype) == ("h", "float32")
    assert cast.uses == (("view", 0), ("two", 0), ("output", 0))


def test_a_cast_for_some_uses_is_made_at_the_first() -> None:
    graph, plan = parse_graph(WRITTEN), plan_of(WRITTEN)
    (low,) = [c for c in plan.casts if (c.value, c.to_dtype) == ("h", "bfloat16")]
    assert low.uses == (("two", 0),)
    assert not is_at_definition(graph, low, output_sources(graph))


def test_what_is_returned_in_full_is_cast_where_it_is_made() -> None:
    text = """
        %x: f32[4,8] input
        %w: f32[8,8] parameter
        one = linear(%x, %w) -> %h: f32[4,8]
        two = linear(%h, %w) -> %b: f32[4,8]
        taped return %h, %b
    """
    graph, plan = parse_graph(dedent(text).strip()), plan_of(text, training=True)
    sources = output_sources(graph)
    at = [c for c in plan.casts if is_at_definition(graph, c, sources)]
    uses = (("two", 0), ("output", 0))
    assert [(c.value, c.uses) for c in at] == [("h", uses)]


VIEWED = """%x: f32[4,8] input
%w: f32[8,8] parameter
one = linear(%x, %w) -> %h: f32[4,8]
part = slice(%h) -> %v: f32[2,8] alias %h
write = exp(%v) -> %e: f32[2,8] alias %h
  | mutates=[0]
turn = transpose(%e) -> %t: f32[8,2] alias %h
two = linear(%x, %w) -> %b: f32[4,8]
slice = slice(%b) -> %c: f32[2,8] alias %b
look = slice(%x) -> %y: f32[2,8] alias %x
return %h, %t, %c, %x, %y
"""


def test_outputs_that_share_a_result_are_cast_from_it() -> None:
    """A view alone is cast alone, and what views an input is never cast."""
    assert output_sources(parse_graph(VIEWED)) == ("h", "h", "c", "x", "y")


def test_the_way_to_a_view_leads_through_writes() -> None:
    graph = parse_graph(VIEWED)
    path = view_path(graph, "h", "t")
    assert path is not None
    assert [(op.name, name) for op, name in path] == [
        ("part", "v"),
        ("write", "e"),
        ("turn", "t"),
    ]
    assert view_path(graph, "x", "y") is None


def test_a_value_that_is_read_twice_has_its_first_dtype() -> None:
    op = Op("m", "mul", "", ("a", "b", "a"), ("c",))
    read = dtypes_read(op, ("float32", "bfloat16", "float64"))
    assert read == {"a": "float32", "b": "bfloat16"}
