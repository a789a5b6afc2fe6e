"""Which framework takes a model, and what plans for it."""

from typing import Any

import pytest

from amprewrite import dispatch
from amprewrite.errors import PolicyError, UnsupportedError
from amprewrite.ir import parse_graph

GRAPH = """
%x: f32[4,8] input
%w: f32[8,8] parameter
linear = linear(%x, %w) -> %y: f32[4,8]
return %y
"""


def test_a_planner_makes_plans_by_policy_and_overrides() -> None:
    graph = parse_graph(GRAPH)
    plan = dispatch.planner("bf16")(graph, training=False, captured="by hand")
    assert (plan.captured, len(plan.lowered)) == ("by hand", 1)
    deny = dispatch.planner("bf16", [{"op": "linear", "class": "deny"}])
    assert deny(graph, training=False, captured="").lowered == ()


def test_a_planner_keeps_no_memory_of_rules_that_matched() -> None:
    plan = dispatch.planner("bf16", [{"op": "linear", "class": "allow"}])
    graph, empty = parse_graph(GRAPH), parse_graph("return")
    assert plan(graph, training=False, captured="").warnings == ()
    assert any(
        "unused rule" in w for w in plan(empty, training=False, captured="").warnings
    )


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (("bf61",), PolicyError),
        (("bf16", [{"op": "exp"}]), PolicyError),
        (("bf16", (), "best"), UnsupportedError),
    ],
)
def test_a_planner_finds_mistakes_at_once(
    given: tuple[Any, ...], error: type[Exception]
) -> None:
    with pytest.raises(error):
        dispatch.planner(*given)
