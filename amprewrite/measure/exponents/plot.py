"""Counts by exponent, drawn by matplotlib, with the ranges of formats over them."""

from typing import TYPE_CHECKING, Any

from amprewrite.dtypes import short_name
from amprewrite.libraries.drawing import load_matplotlib
from amprewrite.measure.exponents.rows import Range, exponent_of, range_of
from amprewrite.measure.exponents.text import SHOWN

if TYPE_CHECKING:
    from amprewrite.measure.exponents.histogram import ExponentHistogram

COLOURS = ("tab:orange", "tab:green", "tab:red", "tab:purple")
"""Colour of each format of :data:`SHOWN`."""


def plot_exponents(histogram: "ExponentHistogram", scale: float = 1.0) -> Any:
    """Return a figure of the counts; see :meth:`ExponentHistogram.plot`.

    A format is a bar above the counts: solid over its normal numbers, pale over its
    subnormal ones.

    Args:
        histogram: The counts.
        scale: Power of two that gradients are multiplied by in a second drawing.

    Returns:
        A ``matplotlib.figure.Figure`` without a display; ``savefig`` writes it.

    Raises:
        ArgumentError: ``scale`` is no power of two.
        UnsupportedError: matplotlib is not installed.
    """
    moved = exponent_of(scale)
    totals = [row for row in histogram.totals.values() if row.counts]
    count = max(len(totals), 1)
    size = (9, 1 + 2.2 * count)
    figure = load_matplotlib().Figure(figsize=size, layout="constrained")
    panels: Any = figure.subplots(count, 1, squeeze=False)
    ends = [e + m for row in totals for e in row.counts for m in (0, moved)]
    first, last = (min(ends), max(ends)) if ends else (-24, 15)
    for axes, row in zip(panels[:, 0], totals, strict=False):
        _bars(axes, row.counts, 0, "as it is", "tab:blue")
        if moved and "gradient" in row.kind:
            _bars(axes, row.counts, moved, f"times 2^{moved}", "tab:cyan")
            axes.legend(fontsize=7, loc="upper left")
        axes.set_yscale("symlog", linthresh=1)
        axes.set_xlim(min(first, -27) - 1, max(last, 16) + 1)
        axes.set_title(f"{row.kind}s", fontsize=9)
        axes.set_ylabel("numbers")
        _, top = axes.get_ylim()
        axes.set_ylim(0, top**1.5 + 10)  # room for the formats above the counts
        for number, name in enumerate(SHOWN):
            height = 0.95 - 0.06 * number
            _range(axes, range_of(name), height, COLOURS[number], short_name(name))
    panels[-1, 0].set_xlabel("exponent e: numbers of 2^e to 2^(e + 1)")
    return figure


def _bars(axes: Any, counts: Any, moved: int, label: str, colour: str) -> None:
    axes.bar(
        [e + moved + 0.5 for e in counts],
        list(counts.values()),
        width=0.9,
        label=label,
        color=colour,
        alpha=0.7,
    )


def _range(axes: Any, ends: Range, height: float, colour: str, name: str) -> None:
    """Draw a format: subnormal numbers pale, normal ones solid, then its name."""
    across = axes.get_xaxis_transform()
    spans = ((ends.least + 1, ends.normal, 0.35), (ends.normal, ends.largest + 1, 1.0))
    for start, stop, alpha in spans:
        axes.plot(
            [start, stop],
            [height, height],
            color=colour,
            alpha=alpha,
            linewidth=3,
            solid_capstyle="butt",
            transform=across,
        )
    left, right = axes.get_xlim()
    place = min(max(ends.largest + 1.3, left), right - 2)
    axes.text(
        place, height, name, fontsize=6, color=colour, va="center", transform=across
    )
