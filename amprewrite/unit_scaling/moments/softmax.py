r"""Exact moments of a softmax of n Gaussian numbers, by deterministic quadrature.

For p_i = w_i / S with w_i = exp(s X_i), S the sum of all w and X_i ~ N(0, 1),
1/S^k is the integral of t^(k-1) exp(-tS) / (k-1)! over t > 0. Under it the factors
are independent, so that with t = e^u every mean is one integral over u:

    E[p_i^k]       = integral of B_k(u) L(u)^(n-1) / (k-1)!
    E[p_i^2 p_j^2] = integral of B_2(u)^2 L(u)^(n-2) / 3!

    B_k(u) = E[v^k exp(-v)], L(u) = E[exp(-v)], v = exp(u + sX).

All integrands are smooth and vanish at both ends, where the trapezoidal rule is exact
to rounding. This holds for every n and s; a log-normal limit (n far above e^(s^2)) or
a fitted curve (u-muP, Blake et al., 2024, appendix) does not.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

Array = NDArray[np.float64]

STEP = 0.1
"""Of the trapezoidal rule: integrands are as wide as 1 or wider."""
REACH = 12.0
"""Standard deviations; the density beyond is below 1e-31."""


@dataclass(frozen=True)
class SoftmaxMoments:
    """Moments of p = softmax(sX) over n numbers.

    Attributes:
        size: n.
        square: E[p_i^2].
        slope: E[(p_i (g_i - sum of p_j g_j))^2] for unit g, the mean square of the
            gradient of the logits: E[p_i^2 (1 - 2 p_i + sum of p_j^2)].
    """

    size: int
    square: float
    slope: float


def _expectations(spread: float, u: Array) -> tuple[Array, Array]:
    """Return B_1 to B_4, shape (4, points of u), and 1 - L."""
    powers = np.arange(1, 5)[:, None]
    if spread <= 1:  # the density is the narrow one: sum over X
        x = np.arange(-REACH, REACH + STEP / 2, STEP)
        density = np.exp(-x * x / 2) * STEP / math.sqrt(2 * math.pi)
        log_v = u[:, None] + spread * x
        v = np.exp(np.minimum(log_v, 700))
        found = [np.exp(k * log_v - v) @ density for k in powers.ravel()]
        return np.stack(found), -np.expm1(-v) @ density
    log_v = np.arange(-45.0, 7.0, STEP)  # v exp(-v) is the narrow one: sum over log v
    away = (log_v - u[:, None]) / spread
    density = np.exp(-away * away / 2) * STEP / (spread * math.sqrt(2 * math.pi))
    weights = np.exp(powers * log_v - np.exp(log_v))
    return weights @ density.T, ndtr(-away) @ weights[0] * STEP


@functools.lru_cache(maxsize=64)
def _tables(spread: float, octaves: int) -> tuple[float, Array, Array]:
    """Return the step of u, B_1 to B_4 and log L, for up to 2**octaves numbers."""
    ends = REACH * spread + 20
    step = STEP * max(1.0, spread)
    start = -ends - octaves * math.log(2) - spread**2 / 2
    b, one_less = _expectations(spread, np.arange(start, ends, step))
    with np.errstate(divide="ignore"):
        return step, b, np.log1p(-np.minimum(one_less, 1.0))


@functools.lru_cache(maxsize=4096)
def softmax_moments(size: int, spread: float) -> SoftmaxMoments:
    """Return the moments of the softmax of ``size`` logits of that standard deviation.

    Args:
        size: Number of logits n, from 1.
        spread: Standard deviation s of the logits.
    """
    if size == 1:
        return SoftmaxMoments(1, 1.0, 0.0)
    step, b, log_rest = _tables(spread, (size - 1).bit_length())
    others = np.exp((size - 1) * log_rest)
    square, cube, fourth = (b[1:] @ others) * step / [1, 2, 6]
    rest = np.exp((size - 2) * np.maximum(log_rest, -1e300))  # 0 times infinity is 0
    both = float((b[1] ** 2 * rest).sum()) * step / 6
    slope = square - 2 * cube + fourth + (size - 1) * both
    return SoftmaxMoments(size, float(square), float(slope))
