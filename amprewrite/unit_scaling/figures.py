"""Four figures of a scaled activation, as data.

What the function does, what it does to a Gaussian number, how both scales follow the
multiplier, and the function scaled. Each holds the rule beside an experiment.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amprewrite.errors import UnitScalingError
from amprewrite.libraries.drawing import load_matplotlib
from amprewrite.unit_scaling.constraints import apply_constraint
from amprewrite.unit_scaling.moments import NONLINEARITIES
from amprewrite.unit_scaling.rules import derive_rule

Array = NDArray[np.float64]

RANGE = 2.5
"""Curves reach this far on both sides."""
POINTS = 1001
SEED = 1472
MULTS = tuple(2.0 ** (k / 5) for k in range(-15, 16))
"""Multipliers of a sweep: 31 from 1/8 to 8."""


@dataclass(frozen=True)
class Curve:
    """A function and its derivative.

    Attributes:
        label: Name of the curve.
        x: Points, float64 of shape (n,).
        y: Values there.
        slope: Gradient that a backward pass gives there, for 1 at the output.
    """

    label: str
    x: Array
    y: Array
    slope: Array


@dataclass(frozen=True)
class Spread:
    """A histogram of a quantity for unit Gaussian inputs.

    Attributes:
        label: Name of the quantity.
        edges: Edges of the bins, shape (n + 1,).
        share: Share of the sample in each bin, shape (n,).
        rms: Root mean square of the sample.
        rule: That of the rule.
    """

    label: str
    edges: Array
    share: Array
    rms: float
    rule: float


@dataclass(frozen=True)
class Sweep:
    """Standard deviations over multipliers, each of shape (multipliers,).

    Attributes:
        mults: The multipliers.
        output: Standard deviation of the output by the rule.
        gradient: Standard deviation of the input's gradient by the rule.
        sampled_output: The first, of a sample.
        sampled_gradient: The second, of a sample.
    """

    mults: Array
    output: Array
    gradient: Array
    sampled_output: Array
    sampled_gradient: Array


@dataclass(frozen=True)
class Figures:
    """The four figures of an activation.

    Attributes:
        op: Its name.
        kind: Source of its rule.
        plain: The function as it is.
        spreads: Histograms of x, y and dy/dx at multiplier 1.
        sweep: Scales over multipliers.
        scaled: The function plain, scaled, and scaled with multiplier 3.
    """

    op: str
    kind: str
    plain: Curve
    spreads: tuple[Spread, ...]
    sweep: Sweep
    scaled: tuple[Curve, ...]


def figures_of(
    op: str,
    *,
    mults: Sequence[float] = MULTS,
    constraint: str | None = "to_output_scale",
    sample: int = 2**18,
    **parameters: float,
) -> Figures:
    """Return the four figures of an activation.

    Args:
        op: Name of an elementwise function of one input.
        mults: Multipliers of the sweep.
        constraint: Constraint of the scaled curves.
        sample: Number of Gaussian numbers of each experiment, of a fixed seed.
        **parameters: Parameters of the function, such as ``alpha``.

    Raises:
        UnitScalingError: The name is that of no elementwise function of one input.
    """
    rule = derive_rule(op, **parameters) if op in NONLINEARITIES else None
    if rule is None or rule.moments is None:
        msg = f"no figures for {op!r}; want one of {', '.join(NONLINEARITIES)}"
        raise UnitScalingError(msg)
    moments = rule.moments
    plain = _curve(op, 1.0, (1.0, 1.0), parameters, label=op)
    rng = np.random.default_rng(SEED)
    x, gradient = rng.standard_normal((2, sample))
    y, slope = _value(op, x, 1.0, parameters), _slope(op, x, 1.0, parameters)
    spreads = (
        _spread("x", x, 1.0),
        _spread("y", y, moments.rms),
        _spread("dy/dx", slope, moments.gradient),
    )
    found = [derive_rule(op, mult, **parameters).moments for mult in mults]
    sweep = Sweep(
        np.array(mults),
        np.array([m.std for m in found if m]),
        np.array([m.gradient for m in found if m]),
        np.array([_value(op, x, m, parameters).std() for m in mults]),
        np.array([(gradient * _slope(op, x, m, parameters)).std() for m in mults]),
    )
    scaled = [plain]
    for mult, label in ((1.0, f"scaled {op}"), (3.0, f"scaled {op}, mult=3")):
        forward, backward = derive_rule(op, mult, **parameters).pair()
        factors = apply_constraint(constraint, forward, backward)
        scaled.append(_curve(op, mult, factors, parameters, label=label))
    return Figures(op, rule.kind, plain, spreads, sweep, tuple(scaled))


def _value(op: str, x: Array, mult: float, parameters: dict[str, float]) -> Array:
    """Return f(mult * x) / mult."""
    function = NONLINEARITIES[op]
    given = {**function.parameters, **parameters}
    return np.asarray(function.value(mult * x, **given)) / mult


def _slope(op: str, x: Array, mult: float, parameters: dict[str, float]) -> Array:
    """Return f'(mult * x)."""
    function = NONLINEARITIES[op]
    given = {**function.parameters, **parameters}
    return np.asarray(function.derivative(mult * x, **given))


def _curve(
    op: str,
    mult: float,
    factors: tuple[float, ...],
    parameters: dict[str, float],
    *,
    label: str,
) -> Curve:
    """Return a curve of the op, with a factor on values and another on slopes."""
    x = np.linspace(-RANGE, RANGE, POINTS)
    y, slope = _value(op, x, mult, parameters), _slope(op, x, mult, parameters)
    return Curve(label, x, y * factors[0], slope * factors[1])


def _spread(label: str, values: Array, rule: float) -> Spread:
    """Return the histogram of a sample."""
    count, edges = np.histogram(values, bins=40)
    rms = math.sqrt(np.square(values).mean())
    return Spread(label, edges, count / values.size, rms, rule)


# The four figures of an activation, drawn by matplotlib.


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
