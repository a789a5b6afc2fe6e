"""Figures drawn by matplotlib, if it is installed."""

from collections.abc import Sequence
from pathlib import Path

from amprewrite.libraries.drawing import load_matplotlib
from amprewrite.plan.bounds import Point

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
