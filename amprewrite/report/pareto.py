"""The Pareto front of error and bytes as a table and as data."""

from collections.abc import Sequence
from math import isfinite
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from amprewrite.plan.bounds import Point

HEADS = (
    *("placement", "lowered", "casts", "cast bytes", "op bytes", "total bytes"),
    *("lower bound", "predicted error", "measured error"),
)
"""Column heads of the table; the lower bound certifies a plan as optimal."""

NO_BOUND = "-"
"""Text for a plan without a certificate; only placement ``optimal`` has one."""


def pareto_table(points: Sequence[Point]) -> Table:
    """Return a row for each plan."""
    table = Table(box=box.SIMPLE_HEAD)
    for head in HEADS:
        table.add_column(head, justify="left" if head == HEADS[0] else "right")
    for point in points:
        cost, bound = point.plan.cost, point.plan.cost.lower_bound
        cells = (
            point.placement,
            str(len(point.plan.lowered)),
            str(cost.casts),
            f"{cost.cast_bytes:,}",
            f"{cost.op_bytes:,}",
            f"{cost.total_bytes:,}",
            NO_BOUND if bound is None else f"{bound:,}",
            f"{point.predicted:.2e}",
            "random" if point.measured is None else f"{point.measured:.2e}",
        )
        table.add_row(*(Text(cell) for cell in cells))
    return table


def pareto_json(points: Sequence[Point]) -> dict[str, Any]:
    """Return the plans as JSON data: cost, certificate and errors of each.

    Returns:
        ``points``, a list; ``ok`` says whether every plan that could be measured gave
        finite outputs.
    """
    found = [point.measured for point in points if point.measured is not None]
    rows = [
        {
            "placement": point.placement,
            "lowered": len(point.plan.lowered),
            "casts": point.plan.cost.casts,
            "cast_bytes": point.plan.cost.cast_bytes,
            "op_bytes": point.plan.cost.op_bytes,
            "total_bytes": point.plan.cost.total_bytes,
            "lower_bound": point.plan.cost.lower_bound,
            "predicted_error": point.predicted,
            "measured_error": point.measured,
        }
        for point in points
    ]
    return {"ok": all(map(isfinite, found)), "points": rows}
