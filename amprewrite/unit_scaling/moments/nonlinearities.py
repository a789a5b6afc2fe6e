"""Elementwise functions by name: value, derivative, closed form if there is one."""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Concatenate

import numpy as np
from scipy import special

from amprewrite.unit_scaling.moments import closed_forms
from amprewrite.unit_scaling.moments.model import Moments
from amprewrite.unit_scaling.moments.quadrature import Array, gaussian_moments

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


def _density(z: Array) -> Array:
    return np.exp(-z * z / 2) / math.sqrt(2 * math.pi)


def _within(z: Array, low: float, high: float) -> Array:
    return ((low < z) & (z < high)).astype(np.float64)


def _erf_slope(z: Array) -> Array:
    return 2 / math.sqrt(math.pi) * np.exp(-z * z)


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
    "abs": F(np.abs, np.sign, closed_forms.absolute),
    "celu": F(_celu, _celu_slope, closed_forms.celu, {"alpha": 1.0}),
    "cos": F(np.cos, lambda z: -np.sin(z), closed_forms.cos),
    "elu": F(_elu, _elu_slope, closed_forms.elu, {"alpha": 1.0}),
    "erf": F(sp.erf, _erf_slope, closed_forms.erf),
    "exp": F(np.exp, np.exp, closed_forms.exp),
    "gelu": F(
        lambda z: z * sp.ndtr(z),
        lambda z: sp.ndtr(z) + z * _density(z),
        closed_forms.gelu,
    ),
    "gelu_tanh": F(lambda z: z / 2 * (1 + _inner(z)), _gelu_tanh_slope),
    "hardsigmoid": F(
        lambda z: np.clip(z / 6 + 0.5, 0, 1),
        lambda z: _within(z, -3, 3) / 6,
        closed_forms.hardsigmoid,
    ),
    "hardswish": F(lambda z: z * np.clip(z / 6 + 0.5, 0, 1), _hardswish_slope),
    "hardtanh": F(
        lambda z: np.clip(z, -1, 1), lambda z: _within(z, -1, 1), closed_forms.hardtanh
    ),
    "leaky_relu": F(
        _leaky, _leaky_slope, closed_forms.leaky_relu, {"negative_slope": 0.01}
    ),
    "log_sigmoid": F(lambda z: -_softplus(-z), lambda z: sp.expit(-z)),
    "mish": F(lambda z: z * np.tanh(_softplus(z)), _mish_slope),
    "relu": F(
        lambda z: np.maximum(z, 0), lambda z: _within(z, 0, math.inf), closed_forms.relu
    ),
    "relu6": F(
        lambda z: np.clip(z, 0, 6), lambda z: _within(z, 0, 6), closed_forms.relu6
    ),
    "selu": F(
        _selu,
        _selu_slope,
        closed_forms.selu,
        {"alpha": SELU_ALPHA, "scale": SELU_SCALE},
    ),
    "sigmoid": F(sp.expit, lambda z: sp.expit(z) * sp.expit(-z)),
    "silu": F(lambda z: z * sp.expit(z), _silu_slope),
    "sin": F(np.sin, np.cos, closed_forms.sin),
    "softplus": F(_softplus, sp.expit),
    "softsign": F(lambda z: z / (1 + np.abs(z)), lambda z: (1 + np.abs(z)) ** -2.0),
    "square": F(np.square, lambda z: 2 * z, closed_forms.square),
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
