"""The Pareto front of error and bytes as a table and as data."""

from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from amprewrite.libraries.drawing import load_matplotlib
from amprewrite.plan.bounds import Point

# Figures drawn by matplotlib, if it is installed.

SUFFIXES = (".svg", ".png", ".pdf")
"""Suffixes of the file formats that can be written."""


def plot_pareto(points: Sequence[Point], path: Path) -> None:
    """Write a figure of error against bytes to ``path``.

    It shows the measured error where there is one, and the prediction as a line.

    Raises:
        UnsupportedError: matplotlib is not installed.
    """
    figure = load_matplotlib().Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    front = [point for point in points if point.placement == "optimal"]
    megabytes = [point.plan.cost.total_bytes / 1e6 for point in front]
    axes.plot(megabytes, [p.predicted for p in front], "--", c="0.6", label="predicted")
    for placement in dict.fromkeys(point.placement for point in points):
        some = [point for point in points if point.placement == placement]
        axes.plot(
            [point.plan.cost.total_bytes / 1e6 for point in some],
            [_error(point) for point in some],
            "o" if placement == "optimal" else "s",
            label=placement,
        )
    axes.set_xlabel("total bytes, in millions")
    axes.set_ylabel("relative L2 error of the outputs")
    axes.legend()
    figure.savefig(path)


def _error(point: Point) -> float:
    return point.predicted if point.measured is None else point.measured


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
