"""The program of a plan as a graph."""

import pytest

from amprewrite.page.model import Conversion, Edge
from amprewrite.plan import join_plans
from amprewrite.plan.page import END, MOST_INPUTS, plan_graph
from tests.plan_text import plan_of

TEXT = """
%x: f32[4,8] input
%w: f32[8,8] parameter
linear = linear(%x, %w) -> %h: f32[4,8]
  | path="body"
exp = exp(%h) -> %e: f32[4,8]
ge = ge(%e) -> %m: bool[4,8]
return %e
"""


def test_edges_carry_the_dtype_that_is_read_and_its_cast() -> None:
    plan = plan_of(TEXT)
    graph = plan_graph(plan)
    at = {cast.value: index for index, cast in enumerate(plan.casts)}
    assert set(graph.edges) == {
        Edge("%x", "linear", "bfloat16", at["x"]),
        Edge("linear", "exp", "float32", at["h"]),
        Edge("exp", "ge", "float32"),
        Edge("exp", END, "float32"),
    }
    names = [(node.name, node.kind, node.dtype) for node in graph.nodes]
    assert names == [
        ("%x", "input", "float32"),
        ("linear", "op", "bfloat16"),
        ("exp", "op", "float32"),
        ("ge", "op", plan.by_op["ge"].precision),
        (END, "output", "float32"),
    ]


def test_every_cast_is_there_with_its_ends() -> None:
    plan = plan_of(TEXT)
    found = {c.value: c for c in plan_graph(plan).conversions}
    assert found.keys() == {"x", "w", "h"}
    assert found["x"].source == "%x"
    assert found["w"].weight
    assert (found["w"].source, found["w"].folded) == ("", "storage")
    cast = next(cast for cast in plan.casts if cast.value == "h")
    expected = Conversion("h", "linear", ("exp",), "bfloat16", "float32", cast.bytes)
    assert found["h"].source == expected.source
    assert found["h"].targets == expected.targets
    assert found["h"].from_dtype == expected.from_dtype
    assert found["h"].bytes == expected.bytes


def test_shares_marks_and_ops_of_integers_are_told() -> None:
    graph = plan_graph(plan_of(TEXT), {"linear": 0.9}, {"exp"})
    found = {node.name: node for node in graph.nodes}
    assert (found["linear"].share, found["exp"].share) == (0.9, 0.0)
    assert found["exp"].marked
    assert not found["linear"].marked
    assert plan_graph(plan_of(TEXT)).nodes[1].share is None
    ints = "%i: i64[4] input\nadd = add(%i) -> %j: i64[4]\nreturn %j"
    assert plan_graph(plan_of(ints)).nodes[1].quiet
    assert not found["linear"].quiet


def test_many_inputs_are_left_out() -> None:
    count = MOST_INPUTS + 1
    inputs = "\n".join(f"%x{i}: f32[4] input" for i in range(count))
    ops = "\n".join(f"add{i} = add(%x{i}) -> %y{i}: f32[4]" for i in range(count))
    graph = plan_graph(plan_of(f"{inputs}\n{ops}\nreturn %y0"))
    assert {node.kind for node in graph.nodes} == {"op", "output"}
    assert f"{count} inputs are left out" in graph.lead
    assert [edge.target for edge in graph.edges] == [END]


def test_the_graphs_of_a_joined_plan_keep_their_edges() -> None:
    plan = plan_of(TEXT)
    one, joined = plan_graph(plan), plan_graph(join_plans([plan, plan]))
    ends = {(e.source, e.target) for e in joined.edges}
    assert ("graph0.linear", "graph0.exp") in ends
    assert ("graph1.linear", "graph1.exp") in ends
    assert len(joined.edges) == 2 * len(one.edges)
    cast = [e.conversion for e in joined.edges if e.target == "graph1.linear"]
    assert joined.conversions[cast[0] or 0].value == "graph1.x"


@pytest.mark.parametrize("change", [{"program": ()}, {"decisions": ()}])
def test_a_plan_without_its_program_or_its_ops_has_a_graph(change) -> None:
    from dataclasses import replace

    graph = plan_graph(replace(plan_of(TEXT), casts=(), **change))
    assert all(edge.source == "%x" or edge.target == END for edge in graph.edges) or (
        not graph.edges
    )
