r"""Closed forms of the moments of Y = f(mX) / m for X ~ N(0, 1).

m is the multiplier (mult), phi and Phi the density and the distribution function of
X. They follow from three facts: the moments of a Gaussian number between two bounds,
Stein's lemma E[X g(X)] = E[g'(X)], and
E[Phi(mX)^2] = 1/4 + asin(m^2 / (1 + m^2)) / (2 pi), the chance that three correlated
Gaussian numbers have one order. Each is evaluated in float64, in a form that does not
cancel; a test holds it to quadrature.
"""

import math

from scipy.special import erfcx, gammainc, ndtr

from amprewrite.unit_scaling.moments.model import Moments

ROOT_TWO_PI = math.sqrt(2 * math.pi)

CANCELS_BELOW = 2.0**-4
"""The moments of elu cancel for a multiplier below; quadrature does not."""


def relu(_mult: float) -> Moments:
    """Half of a Gaussian number: no multiplier changes it."""
    return leaky_relu(_mult, negative_slope=0.0)


def leaky_relu(_mult: float, *, negative_slope: float) -> Moments:
    """Two half lines, of slopes 1 and ``negative_slope``."""
    square = (1 + negative_slope**2) / 2
    mean = (1 - negative_slope) / ROOT_TWO_PI
    return Moments(mean, square - mean**2, square)


def absolute(_mult: float) -> Moments:
    """The absolute value."""
    return leaky_relu(_mult, negative_slope=-1.0)


def hardtanh(mult: float) -> Moments:
    """A number cut at c = 1/m.

    E[X^2; |X| < c] is the lower incomplete gamma function P(3/2, c^2/2), and the rest
    is c^2 P(|X| > c). Written out by parts it is
    Z + (1 - Z)/m^2 - sqrt(2/pi)/m exp(-1/(2 m^2)) with Z = erf(1/(m sqrt(2))), which
    cancels for a large m. The derivative is 1 inside and 0 outside: E = Z.
    """
    bound = 1 / mult
    inside = math.erf(bound / math.sqrt(2))
    square = float(gammainc(1.5, bound**2 / 2))
    return Moments(0.0, square + bound**2 * math.erfc(bound / math.sqrt(2)), inside)


def hardsigmoid(mult: float) -> Moments:
    """The function clip(z/6 + 1/2, 0, 1), which is (hardtanh(z/3) + 1) / 2."""
    cut = hardtanh(mult / 3).times(1 / 6)
    return Moments(0.5 / mult, cut.variance, cut.slope)


def relu6(mult: float) -> Moments:
    """A number cut at 0 and at c = 6/m."""
    bound = 6 / mult
    above = float(ndtr(-bound))
    mean = -math.expm1(-(bound**2) / 2) / ROOT_TWO_PI + bound * above
    square = float(gammainc(1.5, bound**2 / 2)) / 2 + bound**2 * above
    return Moments(mean, square - mean**2, math.erf(bound / math.sqrt(2)) / 2)


def gelu(mult: float) -> Moments:
    """The function x Phi(mx).

    Stein's lemma twice gives E[X^2 h(X)] = E[h] + E[h''] with h = Phi(mx)^2, and
    E[X Phi phi(mX)] = m/(1 + m^2) E[phi(mX)^2], E[phi(mX)^2] = 1/(2 pi sqrt(1 + 2m^2)).
    """
    squared = mult * mult
    mean = mult / (ROOT_TWO_PI * math.sqrt(1 + squared))
    square = (
        0.25
        + math.asin(squared / (1 + squared)) / (2 * math.pi)
        + squared / (math.pi * (1 + squared) * math.sqrt(1 + 2 * squared))
    )
    slope = square + squared / (2 * math.pi * (1 + 2 * squared) ** 1.5)
    return Moments(mean, square - mean**2, slope)


def elu(mult: float, *, alpha: float) -> Moments | None:
    """Exponential below zero: E[exp(kmX); X < 0] is erfcx(km/sqrt(2)) / 2.

    None for a small multiplier, where the closed form cancels.
    """
    if mult < CANCELS_BELOW:
        return None
    once, twice = (float(erfcx(k * mult / math.sqrt(2))) / 2 for k in (1, 2))
    mean = 1 / ROOT_TWO_PI + alpha / mult * (once - 0.5)
    square = 0.5 + (alpha / mult) ** 2 * (twice - 2 * once + 0.5)
    return Moments(mean, square - mean**2, 0.5 + alpha**2 * twice)


def selu(mult: float, *, alpha: float, scale: float) -> Moments | None:
    """An elu times ``scale``."""
    found = elu(mult, alpha=alpha)
    return None if found is None else found.times(scale)


def celu(mult: float, *, alpha: float) -> Moments | None:
    """An elu of another multiplier, as celu of alpha is alpha elu(z / alpha)."""
    return elu(mult / alpha, alpha=1.0)


def erf(mult: float) -> Moments:
    """The error function, as E[Phi(aX)^2] gives it for a = m sqrt(2)."""
    squared = mult * mult
    square = 2 / math.pi * math.asin(2 * squared / (1 + 2 * squared)) / squared
    return Moments(0.0, square, 4 / (math.pi * math.sqrt(1 + 4 * squared)))


def sin(mult: float) -> Moments:
    """The sine, by E[cos(2mX)] = exp(-2m^2)."""
    decay = math.expm1(-2 * mult**2)
    return Moments(0.0, -decay / (2 * mult**2), 1 + decay / 2)


def cos(mult: float) -> Moments:
    """The cosine, by E[cos(mX)] = exp(-m^2/2)."""
    variance = math.expm1(-(mult**2)) ** 2 / (2 * mult**2)
    slope = -math.expm1(-2 * mult**2) / 2
    return Moments(math.exp(-(mult**2) / 2) / mult, variance, slope)


def exp(mult: float) -> Moments:
    """The exponential: a log-normal number."""
    squared = mult * mult
    variance = math.exp(squared) * math.expm1(squared) / squared
    return Moments(math.exp(squared / 2) / mult, variance, math.exp(2 * squared))


def square(mult: float) -> Moments:
    """The square: chi-squared."""
    return Moments(mult, 2 * mult**2, 4 * mult**2)
