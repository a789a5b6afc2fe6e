"""The page of a plan: its figures, tables, differences."""

from typing import Any

from amprewrite.page.model import Column
from amprewrite.plan.page import plan_page
from tests.plan_text import plan_of

TEXT = """
%x: f32[4,8] input
%w: f32[8,8] parameter
linear = linear(%x, %w) -> %h: f32[4,8]
  | path="body" source="model.py:3"
exp = exp(%h) -> %e: f32[4,8]
return %e
"""


def rows(table: Any) -> list[dict[str, Any]]:
    heads = [column.title for column in table.columns]
    return [dict(zip(heads, row, strict=True)) for row in table.rows]


def test_figures_and_rows_are_those_of_the_plan() -> None:
    plan = plan_of(TEXT)
    page = plan_page(plan)
    facts = {fact.label: fact.value for fact in page.facts}
    assert facts["ops in bfloat16"] == "1 of 2"
    assert facts["casts at run time"] == f"{len(plan.runtime_casts)}"
    assert [(s.dtype, s.count) for s in page.shares] == [
        ("bfloat16", 1),
        ("float32", 1),
    ]
    ops, casts = page.tables
    linear = rows(ops)[0]
    assert linear["op"] == "linear"
    assert linear["computes"] == "bfloat16"
    assert (linear["module"], linear["source"]) == ("body", "model.py:3")
    assert linear["why"] == plan.by_op["linear"].why
    weight = next(row for row in rows(casts) if row["value"] == "w")
    assert (weight["cast"], weight["bytes"]) == ("float32 -> bfloat16", 0)
    assert weight["free by"] == "storage"


def test_two_plans_are_compared_in_the_order_of_diff() -> None:
    plan, other = (
        plan_of(TEXT),
        plan_of(TEXT, overrides=[{"op": "linear", "class": "deny"}]),
    )
    page = plan_page(plan, against=other)
    figures, differences = page.before
    found = {row["figure"]: row for row in rows(figures)}
    assert (found["ops lowered"]["this plan"], found["ops lowered"]["the other"]) == (
        "1",
        "0",
    )
    lines = [f"{where}: {text}" for where, text in differences.rows]
    assert lines == list(plan.diff(other))
    assert page.graph is not None
    assert [node.name for node in page.graph.nodes if node.marked] == ["linear"]
    same = plan_page(plan, against=plan)
    assert same.before[1].rows == ()
    assert "decide the same" in same.before[1].lead


def test_measurements_are_shown_with_the_ops() -> None:
    plan = plan_of(TEXT)
    column = Column("own error", "error")
    columns, shares = [(column, {"linear": 0.5})], {"linear": 1.0}
    page = plan_page(plan, columns=columns, error_shares=shares, faults={"exp"})
    assert [row["own error"] for row in rows(page.tables[0])] == [0.5, None]
    assert page.graph is not None
    marked = {n.name: (n.share, n.marked) for n in page.graph.nodes if n.kind == "op"}
    assert marked == {"linear": (1.0, False), "exp": (0.0, True)}


def test_a_plan_without_ops_has_a_page() -> None:
    page = plan_page(plan_of("return"))
    assert page.tables[0].rows == ()
