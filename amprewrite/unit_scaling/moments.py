"""Moments: how functions of unit Gaussian numbers change their scale."""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Concatenate

import numpy as np
from numpy.typing import NDArray
from scipy import special
from scipy.special import erfcx, gammainc, ndtr

from amprewrite.errors import UnitScalingError

# The moments of a scalar function of a unit Gaussian number.


@dataclass(frozen=True)
class Moments:
    """Moments of Y = f(X) and of f'(X), for X ~ N(0, 1), in float64.

    Attributes:
        mean: E[Y].
        variance: E[(Y - E[Y])^2].
        slope: E[f'(X)^2]: the variance of a gradient that passes back through f, for
            a unit gradient of the output that does not depend on X.
    """

    mean: float
    variance: float
    slope: float

    @property
    def std(self) -> float:
        """Standard deviation of the output."""
        return math.sqrt(self.variance)

    @property
    def rms(self) -> float:
        """Root mean square of the output."""
        return math.hypot(self.std, self.mean)

    @property
    def gradient(self) -> float:
        """Standard deviation of the gradient of the input."""
        return math.sqrt(self.slope)

    def is_usable(self) -> bool:
        """Return whether the output and the gradient have a finite scale above zero."""
        found = (self.variance, self.slope)
        return math.isfinite(self.mean) and all(0 < x < math.inf for x in found)

    def times(self, factor: float) -> "Moments":
        """Return the moments of ``factor * f``."""
        squared = factor * factor
        return Moments(
            self.mean * factor, self.variance * squared, self.slope * squared
        )


# Deterministic quadrature against the Gaussian density, to close to float64.
#
# Panels are halved where the rule of 16 nodes and that of their two halves disagree, so
# that kinks and jumps are found by bisection and need not be known. The nodes are those
# of Gauss and Lobatto, which have the ends of a panel among them: a jump next to an end
# is seen too. No sample is drawn: the same function has the same moments everywhere.

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


# Closed forms of the moments of Y = f(mX) / m for X ~ N(0, 1).
#
# m is the multiplier (mult), phi and Phi the density and the distribution function of
# X. They follow from three facts: the moments of a Gaussian number between two bounds,
# Stein's lemma E[X g(X)] = E[g'(X)], and E[Phi(mX)^2] = 1/4 + asin(m^2 / (1 + m^2)) /
# (2 pi), the chance that three correlated Gaussian numbers have one order. Each is
# evaluated in float64, in a form that does not cancel; a test holds it to quadrature.

ROOT_TWO_PI = math.sqrt(2 * math.pi)

CANCELS_BELOW = 2.0**-4
"""The moments of elu cancel for a multiplier below; quadrature does not."""


def relu_moments(_mult: float) -> Moments:
    """Half of a Gaussian number: no multiplier changes it."""
    return leaky_relu_moments(_mult, negative_slope=0.0)


def leaky_relu_moments(_mult: float, *, negative_slope: float) -> Moments:
    """Two half lines, of slopes 1 and ``negative_slope``."""
    square_moments = (1 + negative_slope**2) / 2
    mean = (1 - negative_slope) / ROOT_TWO_PI
    return Moments(mean, square_moments - mean**2, square_moments)


def absolute_moments(_mult: float) -> Moments:
    """The absolute value."""
    return leaky_relu_moments(_mult, negative_slope=-1.0)


def hardtanh_moments(mult: float) -> Moments:
    """A number cut at c = 1/m.

    E[X^2; |X| < c] is the lower incomplete gamma function P(3/2, c^2/2), and the rest
    is c^2 P(|X| > c). Written out by parts it is
    Z + (1 - Z)/m^2 - sqrt(2/pi)/m exp(-1/(2 m^2)) with Z = erf(1/(m sqrt(2))), which
    cancels for a large m. The derivative is 1 inside and 0 outside: E = Z.
    """
    bound = 1 / mult
    inside = math.erf(bound / math.sqrt(2))
    square_moments = float(gammainc(1.5, bound**2 / 2))
    return Moments(
        0.0, square_moments + bound**2 * math.erfc(bound / math.sqrt(2)), inside
    )


def hardsigmoid_moments(mult: float) -> Moments:
    """The function clip(z/6 + 1/2, 0, 1), which is (hardtanh(z/3) + 1) / 2."""
    cut = hardtanh_moments(mult / 3).times(1 / 6)
    return Moments(0.5 / mult, cut.variance, cut.slope)


def relu6_moments(mult: float) -> Moments:
    """A number cut at 0 and at c = 6/m."""
    bound = 6 / mult
    above = float(ndtr(-bound))
    mean = -math.expm1(-(bound**2) / 2) / ROOT_TWO_PI + bound * above
    square_moments = float(gammainc(1.5, bound**2 / 2)) / 2 + bound**2 * above
    return Moments(mean, square_moments - mean**2, math.erf(bound / math.sqrt(2)) / 2)


def gelu_moments(mult: float) -> Moments:
    """The function x Phi(mx).

    Stein's lemma twice gives E[X^2 h(X)] = E[h] + E[h''] with h = Phi(mx)^2, and
    E[X Phi phi(mX)] = m/(1 + m^2) E[phi(mX)^2], E[phi(mX)^2] = 1/(2 pi sqrt(1 + 2m^2)).
    """
    squared = mult * mult
    mean = mult / (ROOT_TWO_PI * math.sqrt(1 + squared))
    square_moments = (
        0.25
        + math.asin(squared / (1 + squared)) / (2 * math.pi)
        + squared / (math.pi * (1 + squared) * math.sqrt(1 + 2 * squared))
    )
    slope = square_moments + squared / (2 * math.pi * (1 + 2 * squared) ** 1.5)
    return Moments(mean, square_moments - mean**2, slope)


def elu_moments(mult: float, *, alpha: float) -> Moments | None:
    """Exponential below zero: E[exp(kmX); X < 0] is erfcx(km/sqrt(2)) / 2.

    None for a small multiplier, where the closed form cancels.
    """
    if mult < CANCELS_BELOW:
        return None
    once, twice = (float(erfcx(k * mult / math.sqrt(2))) / 2 for k in (1, 2))
    mean = 1 / ROOT_TWO_PI + alpha / mult * (once - 0.5)
    square_moments = 0.5 + (alpha / mult) ** 2 * (twice - 2 * once + 0.5)
    return Moments(mean, square_moments - mean**2, 0.5 + alpha**2 * twice)


def selu_moments(mult: float, *, alpha: float, scale: float) -> Moments | None:
    """An elu times ``scale``."""
    found = elu_moments(mult, alpha=alpha)
    return None if found is None else found.times(scale)


def celu_moments(mult: float, *, alpha: float) -> Moments | None:
    """An elu of another multiplier, as celu of alpha is alpha elu(z / alpha)."""
    return elu_moments(mult / alpha, alpha=1.0)


def erf_moments(mult: float) -> Moments:
    """The error function, as E[Phi(aX)^2] gives it for a = m sqrt(2)."""
    squared = mult * mult
    square_moments = 2 / math.pi * math.asin(2 * squared / (1 + 2 * squared)) / squared
    return Moments(0.0, square_moments, 4 / (math.pi * math.sqrt(1 + 4 * squared)))


def sin_moments(mult: float) -> Moments:
    """The sine, by E[cos(2mX)] = exp(-2m^2)."""
    decay = math.expm1(-2 * mult**2)
    return Moments(0.0, -decay / (2 * mult**2), 1 + decay / 2)


def cos_moments(mult: float) -> Moments:
    """The cosine, by E[cos(mX)] = exp(-m^2/2)."""
    variance = math.expm1(-(mult**2)) ** 2 / (2 * mult**2)
    slope = -math.expm1(-2 * mult**2) / 2
    return Moments(math.exp(-(mult**2) / 2) / mult, variance, slope)


def exp_moments(mult: float) -> Moments:
    """The exponential: a log-normal number."""
    squared = mult * mult
    variance = math.exp(squared) * math.expm1(squared) / squared
    return Moments(math.exp(squared / 2) / mult, variance, math.exp(2 * squared))


def square_moments(mult: float) -> Moments:
    """The square: chi-squared."""
    return Moments(mult, 2 * mult**2, 4 * mult**2)


# Elementwise functions by name: value, derivative, closed form if there is one.

sp: Any = special

SELU_ALPHA = 1.6732632423543772
SELU_SCALE = 1.0507009873554805
"""Of Klambauer et al., Self-Normalizing Neural Networks (2017); torch and JAX agree."""
TANH_GELU = 0.044715
"""Of Hendrycks and Gimpel, GELUs (2016)."""


Function = Callable[Concatenate[Array, ...], Any]
"""An elementwise function of an array; parameters by keyword."""


@dataclass(frozen=True)
class Nonlinearity:
    """An elementwise function z -> f(z); scaled ops compute f(mx) / m.

    Attributes:
        value: f, elementwise on float64 arrays; parameters by keyword.
        derivative: f'.
        closed: Moments of f(mX)/m for a multiplier m, with the parameters by keyword;
            None where there is no elementary form. It may give None for some m.
        parameters: Names and defaults of the parameters.
    """

    value: Function
    derivative: Function
    closed: Callable[..., Moments | None] | None = None
    parameters: Mapping[str, float] = field(default_factory=dict[str, float])


def _within(z: Array, low: float, high: float) -> Array:
    return ((low < z) & (z < high)).astype(np.float64)


def _inner(z: Array) -> Array:
    return np.tanh(math.sqrt(2 / math.pi) * (z + TANH_GELU * z**3))


def _gelu_tanh_slope(z: Array) -> Array:
    tanh = _inner(z)
    inner = math.sqrt(2 / math.pi) * (1 + 3 * TANH_GELU * z**2)
    return (1 + tanh) / 2 + z / 2 * (1 - tanh**2) * inner


def _silu_slope(z: Array) -> Array:
    gate = sp.expit(z)
    return gate * (1 + z * sp.expit(-z))


def _softplus(z: Array) -> Array:
    return np.logaddexp(0, z)


def _mish_slope(z: Array) -> Array:
    tanh = np.tanh(_softplus(z))
    return tanh + z * (1 - tanh**2) * sp.expit(z)


def _elu(z: Array, alpha: float) -> Array:
    return np.where(z > 0, z, alpha * np.expm1(np.minimum(z, 0)))


def _elu_slope(z: Array, alpha: float) -> Array:
    return np.where(z > 0, 1.0, alpha * np.exp(np.minimum(z, 0)))


def _celu(z: Array, alpha: float) -> Array:
    return alpha * _elu(z / alpha, 1.0)


def _celu_slope(z: Array, alpha: float) -> Array:
    return _elu_slope(z / alpha, 1.0)


def _selu(z: Array, alpha: float, scale: float) -> Array:
    return scale * _elu(z, alpha)


def _selu_slope(z: Array, alpha: float, scale: float) -> Array:
    return scale * _elu_slope(z, alpha)


def _leaky(z: Array, negative_slope: float) -> Array:
    return np.where(z > 0, z, negative_slope * z)


def _hardswish_slope(z: Array) -> Array:
    return np.where(z > 0, 1.0, 0.0) + _within(z, -3, 3) * (z / 3 - np.sign(z) / 2)


def _leaky_slope(z: Array, negative_slope: float) -> Array:
    return np.where(z > 0, 1.0, negative_slope)


F = Nonlinearity
NONLINEARITIES: Mapping[str, Nonlinearity] = {
    "abs": F(np.abs, np.sign, absolute_moments),
    "celu": F(_celu, _celu_slope, celu_moments, {"alpha": 1.0}),
    "cos": F(np.cos, lambda z: -np.sin(z), cos_moments),
    "elu": F(_elu, _elu_slope, elu_moments, {"alpha": 1.0}),
    "erf": F(sp.erf, lambda z: 2 / math.sqrt(math.pi) * np.exp(-z * z), erf_moments),
    "exp": F(np.exp, np.exp, exp_moments),
    "gelu": F(
        lambda z: z * sp.ndtr(z),
        lambda z: sp.ndtr(z) + z * np.exp(-z * z / 2) / math.sqrt(2 * math.pi),
        gelu_moments,
    ),
    "gelu_tanh": F(lambda z: z / 2 * (1 + _inner(z)), _gelu_tanh_slope),
    "hardsigmoid": F(
        lambda z: np.clip(z / 6 + 0.5, 0, 1),
        lambda z: _within(z, -3, 3) / 6,
        hardsigmoid_moments,
    ),
    "hardswish": F(lambda z: z * np.clip(z / 6 + 0.5, 0, 1), _hardswish_slope),
    "hardtanh": F(
        lambda z: np.clip(z, -1, 1), lambda z: _within(z, -1, 1), hardtanh_moments
    ),
    "leaky_relu": F(_leaky, _leaky_slope, leaky_relu_moments, {"negative_slope": 0.01}),
    "log_sigmoid": F(lambda z: -_softplus(-z), lambda z: sp.expit(-z)),
    "mish": F(lambda z: z * np.tanh(_softplus(z)), _mish_slope),
    "relu": F(
        lambda z: np.maximum(z, 0), lambda z: _within(z, 0, math.inf), relu_moments
    ),
    "relu6": F(lambda z: np.clip(z, 0, 6), lambda z: _within(z, 0, 6), relu6_moments),
    "selu": F(
        _selu,
        _selu_slope,
        selu_moments,
        {"alpha": SELU_ALPHA, "scale": SELU_SCALE},
    ),
    "sigmoid": F(sp.expit, lambda z: sp.expit(z) * sp.expit(-z)),
    "silu": F(lambda z: z * sp.expit(z), _silu_slope),
    "sin": F(np.sin, np.cos, sin_moments),
    "softplus": F(_softplus, sp.expit),
    "softsign": F(lambda z: z / (1 + np.abs(z)), lambda z: (1 + np.abs(z)) ** -2.0),
    "square": F(np.square, lambda z: 2 * z, square_moments),
    "tanh": F(np.tanh, lambda z: np.cosh(np.clip(z, -300, 300)) ** -2.0),
}
"""By name; both frameworks and every rule read this table."""


@functools.lru_cache(maxsize=1024)
def moments_of(
    name: str, mult: float, parameters: tuple[tuple[str, float], ...] = ()
) -> tuple[Moments, bool]:
    """Return the moments of f(mX)/m, and whether they come from a closed form.

    Args:
        name: A name of :data:`NONLINEARITIES`.
        mult: The multiplier m, above 0.
        parameters: Pairs of name and value, for all parameters of the function.
    """
    function, given = NONLINEARITIES[name], dict(parameters)
    closed = function.closed and function.closed(mult, **given)
    if closed:
        return closed, True
    return gaussian_moments(
        lambda x: function.value(mult * x, **given) / mult,
        lambda x: function.derivative(mult * x, **given),
    ), False


# Exact moments of a softmax of n Gaussian numbers, by deterministic quadrature.
#
# For p_i = w_i / S with w_i = exp(s X_i), S the sum of all w and X_i ~ N(0, 1), 1/S^k
# is the integral of t^(k-1) exp(-tS) / (k-1)! over t > 0. Under it the factors are
# independent, so that with t = e^u every mean is one integral over u:
#
#     E[p_i^k]       = integral of B_k(u) L(u)^(n-1) / (k-1)!
#     E[p_i^2 p_j^2] = integral of B_2(u)^2 L(u)^(n-2) / 3!
#
#     B_k(u) = E[v^k exp(-v)], L(u) = E[exp(-v)], v = exp(u + sX).
#
# All integrands are smooth and vanish at both ends, where the trapezoidal rule is exact
# to rounding. This holds for every n and s; a log-normal limit (n far above e^(s^2)) or
# a fitted curve (u-muP, Blake et al., 2024, appendix) does not.

STEP = 0.1
"""Of the trapezoidal rule: integrands are as wide as 1 or wider."""
SOFTMAX_REACH = 12.0
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
        x = np.arange(-SOFTMAX_REACH, SOFTMAX_REACH + STEP / 2, STEP)
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
    ends = SOFTMAX_REACH * spread + 20
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
