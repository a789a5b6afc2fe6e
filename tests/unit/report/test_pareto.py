"""Error against bytes as a table and as data."""

import io
from dataclasses import replace

from rich.console import Console

from amprewrite.plan.bounds import Point
from amprewrite.report.pareto import pareto_json, pareto_table
from tests.tolerance_goal import sensitivity
from tests.unit.passes.error_budget.test_pareto import swept


def text(points: list[Point]) -> list[str]:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(pareto_table(points))
    return [line.strip() for line in console.export_text().splitlines() if line.strip()]


def test_a_row_for_each_plan() -> None:
    points = swept(sensitivity(2.0)).points
    head, _, *rows = text(points)
    assert head.startswith("placement")
    assert head.endswith("measured error")
    assert len(rows) == len(points)
    cost = points[0].plan.cost
    assert rows[0].split() == [
        *("optimal", "6", str(cost.casts), f"{cost.cast_bytes:,}"),
        *(f"{cost.op_bytes:,}", f"{cost.total_bytes:,}", f"{cost.lower_bound:,}"),
        *(f"{points[0].predicted:.2e}", f"{points[0].measured:.2e}"),
    ]


def test_what_was_not_measured_and_has_no_bound_says_so() -> None:
    last = swept(sensitivity(), random=True).points[-1]
    (*_, row) = text([last])
    assert row.split()[-3::2] == ["-", "random"]


def test_data_holds_the_same() -> None:
    points = swept(sensitivity()).points
    data = pareto_json(points)
    assert data["ok"] is True
    rows = data["points"]
    assert [row["total_bytes"] for row in rows] == [
        point.plan.cost.total_bytes for point in points
    ]
    assert rows[0]["measured_error"] == points[0].measured
    (row,) = pareto_json([replace(points[0], measured=None)])["points"]
    assert row["measured_error"] is None
    assert pareto_json([replace(points[0], measured=float("inf"))])["ok"] is False
