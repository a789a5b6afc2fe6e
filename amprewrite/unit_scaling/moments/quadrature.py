"""Deterministic quadrature against the Gaussian density, to close to float64.

Panels are halved where the rule of 16 nodes and that of their two halves disagree, so
that kinks and jumps are found by bisection and need not be known. The nodes are those
of Gauss and Lobatto, which have the ends of a panel among them: a jump next to an end
is seen too. No sample is drawn: the same function has the same moments everywhere.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amprewrite.errors import UnitScalingError
from amprewrite.unit_scaling.moments.model import Moments

Array = NDArray[np.float64]
Elementwise = Callable[[Array], Any]
"""A function of an array that gives an array of the same shape."""

COUNT = 16
REACH = 38.0
"""The density is below the smallest float64 beyond."""
TOLERANCE = 1e-15
"""Of a panel, relative to the integral of the absolute value."""
MAX_ROUNDS = 60
MAX_PANELS = 20_000


def _lobatto(count: int) -> tuple[Array, Array]:
    """Return nodes and weights on [-1, 1]: both ends, and extrema of a polynomial."""
    legendre = np.polynomial.Legendre.basis(count - 1)
    inner: Any = legendre.deriv().roots()
    nodes = np.concatenate([[-1.0], np.sort(inner.real), [1.0]])
    values: Any = legendre(nodes)
    return nodes, 2 / (count * (count - 1) * values**2)


NODES, WEIGHTS = _lobatto(COUNT)


def _panel_sums(function: Elementwise, low: Array, high: Array) -> Array:
    """Return the sum of each panel, for each integrand: shape (integrands, panels)."""
    half = (high - low) / 2
    nodes = (low + half)[:, None] + half[:, None] * NODES
    values = np.asarray(function(nodes.ravel()), dtype=np.float64)
    return values.reshape(-1, *nodes.shape) @ WEIGHTS * half


def _halves(low: Array, high: Array) -> tuple[Array, Array]:
    """Return the panels cut in halves: all lower ones, then all upper ones."""
    middle = (low + high) / 2
    return np.concatenate([low, middle]), np.concatenate([middle, high])


def integrate(function: Elementwise, low: Array, high: Array) -> Array:
    """Return the integrals of several functions over the panels, refined as needed.

    Args:
        function: Takes n points and gives an array (integrands, n).
        low: Lower ends of the panels to start from.
        high: Upper ends.

    Raises:
        UnitScalingError: An integrand is not finite, or refining does not end.
    """
    coarse = _panel_sums(function, low, high)
    total = np.zeros(len(coarse))
    size = np.zeros(len(coarse))  # an odd function has integral 0, but no size 0
    for _ in range(MAX_ROUNDS):
        low, high = _halves(low, high)
        parts = _panel_sums(function, low, high)
        fine = parts.reshape(len(parts), 2, -1).sum(axis=1)
        whole = size + np.abs(fine).sum(axis=1)
        if not np.isfinite(whole).all():
            msg = (
                "a function of unit Gaussian numbers has no finite moments; scale "
                "what it is given, or take a smaller mult"
            )
            raise UnitScalingError(msg)
        rough = (np.abs(fine - coarse) > TOLERANCE * whole[:, None]).any(axis=0)
        total += fine[:, ~rough].sum(axis=1)
        size += np.abs(fine[:, ~rough]).sum(axis=1)
        if not rough.any():
            return total
        keep = np.concatenate([rough, rough])
        low, high, coarse = low[keep], high[keep], parts[:, keep]
        if len(low) > MAX_PANELS:
            break
    # Below the width that floats can tell apart, a jump is worth nothing any more.
    if len(low) <= MAX_PANELS:
        return total + coarse.sum(axis=1)
    msg = (
        f"the quadrature of a function does not converge: {len(low)} panels are not "
        "enough; want a function with few jumps, or measure it: measure_rule"
    )
    raise UnitScalingError(msg)


def gaussian_moments(value: Elementwise, derivative: Elementwise) -> Moments:
    """Return the moments of a scalar function of a unit Gaussian number.

    Args:
        value: The function f, elementwise on float64 arrays of shape (n,).
        derivative: Its derivative; where f has a kink, either side.

    Returns:
        Mean and variance of f(X) and the mean of f'(X)^2, each to about 1e-14.

    Raises:
        UnitScalingError: f or f' is not finite, has no moments, or too many jumps.
    """
    edges = np.linspace(-REACH, REACH, 153)
    low, high = edges[:-1], edges[1:]

    def density(x: Array) -> Array:
        return np.exp(-x * x / 2) / math.sqrt(2 * math.pi)

    def weighted(values: Any, x: Array) -> Array:
        weights = density(x)
        # Where the density is nothing, a value that overflows does not count.
        return np.where(weights == 0, 0.0, np.asarray(values) * weights)

    def first(x: Array) -> Array:
        with np.errstate(all="ignore"):
            y, slope = np.asarray(value(x)), np.asarray(derivative(x))
            return weighted(np.stack([y, slope * slope]), x)

    mean, slope = integrate(first, low, high)

    def centred(x: Array) -> Array:
        with np.errstate(all="ignore"):
            return weighted((np.asarray(value(x)) - mean)[None] ** 2, x)

    (variance,) = integrate(centred, low, high)
    return Moments(float(mean), float(variance), float(slope))
