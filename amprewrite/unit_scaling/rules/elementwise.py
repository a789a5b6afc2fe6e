"""Rules of elementwise functions of one number, and of two: gated linear units."""

from collections.abc import Callable
from typing import Any

from amprewrite.errors import UnitScalingError
from amprewrite.unit_scaling.moments import (
    NONLINEARITIES,
    Moments,
    gaussian_moments,
    moments_of,
)
from amprewrite.unit_scaling.rules.model import Factors, Kind, Rule

GATES = {
    "gelu_glu": "gelu",
    "relu_glu": "relu",
    "sigmoid_glu": "sigmoid",
    "silu_glu": "silu",
    "tanh_glu": "tanh",
}
"""Gated linear units x f(gate), and the function f of each."""

STEADY = 4.0
"""Ratio of mean and deviation from which on an output counts as a gain; a choice."""

WHY: dict[Kind, str] = {
    "closed form": "exact moments of a Gaussian number, in float64",
    "quadrature": "moments of a Gaussian number, integrated in float64",
}


def unary_factors(moments: Moments) -> Factors:
    """Return factors that give standard deviation 1 both ways."""
    return Factors(1 / moments.std, {"input": 1 / moments.gradient}, ("input",))


def gate_factor(moments: Moments) -> float:
    """Return the factor of an output that others are multiplied with: its rms is 1."""
    return 1 / moments.rms


def varies(moments: Moments) -> bool:
    """Return whether an output varies: :data:`STEADY` times its mean, or more.

    One that hardly does, as exp(x / 100), is a gain, and has no deviation to scale.
    """
    return moments.std * STEADY >= abs(moments.mean)


def gated_factors(moments: Moments) -> Factors:
    """Return factors of x f(g), which has mean 0 and E[x^2 f(g)^2] = E[f(g)^2].

    The gradient of x is that times another; the gradient of g has E[f'(g)^2].
    """
    backward = {"input": 1 / moments.rms, "gate": 1 / moments.gradient}
    return Factors(1 / moments.rms, backward, ("input", "gate"))


def elementwise_rule(op: str, mult: float, parameters: dict[str, float]) -> Rule:
    """Return the rule of a function by name, or of its gated linear unit.

    Args:
        op: A name of :data:`~amprewrite.unit_scaling.moments.NONLINEARITIES` or
            :data:`GATES`.
        mult: The multiplier m of f(mx)/m.
        parameters: Parameters of the function that are not its defaults.

    Raises:
        UnitScalingError: The output or the gradient has no finite scale above 0.
    """
    function = GATES.get(op, op)
    given = dict(NONLINEARITIES[function].parameters) | parameters
    try:
        moments, closed = moments_of(function, mult, tuple(given.items()))
    except OverflowError:
        moments, closed = Moments(0.0, float("inf"), float("inf")), True
    found = _usable(op, mult, moments)
    factors = gated_factors(found) if op in GATES else unary_factors(found)
    kind: Kind = "closed form" if closed else "quadrature"
    return Rule(op, mult, kind, factors, WHY[kind], given, found)


def rule_of_function(
    value: Callable[[Any], Any],
    derivative: Callable[[Any], Any],
    mult: float = 1.0,
    *,
    name: str = "function",
) -> Rule:
    """Return the rule of any elementwise function f, by quadrature.

    Args:
        value: f, on float64 arrays of shape (n,).
        derivative: f', the same; where f has a kink, either side.
        mult: The multiplier m: the rule is that of f(mx)/m.
        name: Name of the op in the rule.

    Returns:
        A rule of kind ``quadrature``, with the moments.

    Raises:
        UnitScalingError: f is not finite, or the quadrature does not converge.
    """
    moments = gaussian_moments(
        lambda x: value(mult * x) / mult, lambda x: derivative(mult * x)
    )
    found = _usable(name, mult, moments)
    why = WHY["quadrature"]
    return Rule(name, mult, "quadrature", unary_factors(found), why, {}, found)


def _usable(op: str, mult: float, moments: Moments) -> Moments:
    """Return the moments, if factors can be made of them."""
    if moments.is_usable():
        return moments
    msg = (
        f"{op} with mult={mult:g}: the output has variance {moments.variance:g} and "
        f"its gradient {moments.slope:g}; want both finite and above 0: take a mult "
        "nearer to 1"
    )
    raise UnitScalingError(msg)
