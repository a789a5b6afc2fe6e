"""Deviations of all tensors of one run or two, drawn by matplotlib."""

from collections.abc import Sequence
from typing import Any

from amprewrite.libraries.drawing import load_matplotlib
from amprewrite.unit_scaling.tracking.rows import Kind, ScaleRow

SMALLEST = {"float8 e4m3": 2.0**-9, "float8 e5m2": 2.0**-16, "float16": 2.0**-24}
"""Smallest numbers above 0, below half of which a value becomes 0."""

STYLES = (":", "--", "-.")
"""Style of the line of each."""


def plot_rows(heads: Sequence[str], rows: Sequence[ScaleRow]) -> Any:
    """Return a figure: a row for each tensor, values on the left, gradients right.

    Tensors of deviation 0 have no point. Vertical lines are the smallest numbers of
    formats.

    Args:
        heads: Name of each run.
        rows: The tensors.

    Returns:
        A ``matplotlib.figure.Figure`` without a display; ``savefig`` writes it.

    Raises:
        UnsupportedError: matplotlib is not installed.
    """
    size = (10, 1.5 + 0.2 * len(rows))
    figure = load_matplotlib().Figure(figsize=size, layout="constrained")
    panels: Any = figure.subplots(1, 2, sharey=True)
    kinds: tuple[Kind, Kind] = ("forward", "backward")
    for axes, kind in zip(panels, kinds, strict=True):
        for number, head in enumerate(heads):
            found = [row.scales(kind)[number] for row in rows]
            points = [(s.std, y) for y, s in enumerate(found) if s and s.std]
            axes.plot(
                [std for std, _ in points],
                [y for _, y in points],
                "ox"[number % 2],
                label=head,
                color=("tab:orange", "tab:blue")[number % 2],
            )
        axes.axvline(1.0, color="0.6", linewidth=1)
        for style, (name, smallest) in zip(
            (":", "--", "-."), SMALLEST.items(), strict=True
        ):
            axes.axvline(smallest, color="0.6", linestyle=style, label=f"least {name}")
        axes.set_xscale("log", base=2)
        axes.set_title("values" if kind == "forward" else "gradients")
        axes.set_xlabel("standard deviation")
    panels[0].set_yticks(range(len(rows)), [row.name for row in rows])
    panels[0].tick_params("y", labelsize=7)
    panels[0].set_ylim(len(rows) - 0.5, -0.5)
    panels[0].legend(fontsize=7)
    return figure
