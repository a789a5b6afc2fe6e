"""The four figures of an activation, drawn by matplotlib."""

from typing import Any

from amprewrite.libraries.drawing import load_matplotlib
from amprewrite.unit_scaling.figures import Curve, Figures


def plot_figures(figures: Figures) -> Any:
    """Return a ``matplotlib.figure.Figure`` with all four figures, a row for each.

    Args:
        figures: The data, of :func:`~amprewrite.unit_scaling.figures_of`.

    Returns:
        A figure without a display; ``savefig`` writes it.

    Raises:
        UnsupportedError: matplotlib is not installed.
    """
    figure = load_matplotlib().Figure(figsize=(9, 12), layout="constrained")
    figure.suptitle(f"{figures.op} ({figures.kind})")
    rows: Any = figure.subplots(4, 2)
    _draw_curves(rows[0], (figures.plain,))
    for axes, spread in zip(rows[1], figures.spreads[1:], strict=True):
        for shown in (figures.spreads[0], spread):
            label = f"{shown.label}: rms {shown.rms:.3f}, by the rule {shown.rule:.3f}"
            axes.stairs(shown.share, shown.edges, label=label)
        axes.set_ylabel("share")
        axes.legend(frameon=False)
    sweep = figures.sweep
    names = ("y.std", sweep.output, sweep.sampled_output)
    others = ("x.grad.std", sweep.gradient, sweep.sampled_gradient)
    for axes, (name, rule, sampled) in zip(rows[2], (names, others), strict=True):
        axes.plot(sweep.mults, rule, linewidth=4, label="rule", color="tab:orange")
        axes.plot(sweep.mults, sampled, label="experiment", color="tab:blue")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.set_xlabel("mult")
        axes.set_ylabel(name)
        axes.legend(frameon=False)
    _draw_curves(rows[3], figures.scaled)
    return figure


def _draw_curves(row: Any, curves: tuple[Curve, ...]) -> None:
    """Draw values on the left, slopes on the right."""
    for curve in curves:
        row[0].plot(curve.x, curve.y, label=curve.label)
        row[1].plot(curve.x, curve.slope, label=curve.label)
    for axes, name in zip(row, ("y", "dy/dx"), strict=True):
        axes.set_xlabel("x")
        axes.set_ylabel(name)
        axes.legend(frameon=False)
