"""The table of nonlinearities: values, derivatives and known scales."""

import math

import numpy as np
import pytest

from amprewrite.unit_scaling.moments import NONLINEARITIES, moments_of

X = np.concatenate([np.linspace(-7, 7, 29) + 0.1, [-40.0, 40.0]])


@pytest.mark.parametrize("name", sorted(NONLINEARITIES))
def test_each_derivative_is_that_of_the_value(name):
    function = NONLINEARITIES[name]
    given, step = dict(function.parameters), 1e-5
    above, below = (function.value(X + s, **given) for s in (step, -step))
    slope = function.derivative(X, **given)
    assert (above - below) / (2 * step) == pytest.approx(slope, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize(
    ("name", "mult", "std", "rms", "gradient"),
    [
        ("hardtanh", 1.0, 0.7184, 0.7184, 0.8263),
        ("relu", 4.0, 0.5838, 0.7071, 0.7071),
        ("gelu", 1.0, 0.5879, 0.6521, 0.6752),
        ("silu", 4.0, 0.5937, 0.6968, 0.7101),
        ("tanh", 0.25, 0.9451, 0.9451, 0.9469),
        ("sigmoid", 1.0, 0.2083, 0.5416, 0.2117),
        ("softplus", 1.0, 0.5211, 0.9598, 0.5416),
        ("mish", 0.25, 0.6066, 0.6116, 0.6161),
        ("selu", 1.0, 1.0, 1.0, 1.0352),
    ],
)
def test_known_scales(name, mult, std, rms, gradient):
    """Of an independent computation; selu is made to give 1."""
    parameters = tuple(NONLINEARITIES[name].parameters.items())
    found = moments_of(name, mult, parameters)[0]
    assert (found.std, found.rms, found.gradient) == pytest.approx(
        (std, rms, gradient), abs=6e-5
    )


def test_hardtanh_at_one_is_a_number_in_closed_form():
    found = moments_of("hardtanh", 1.0)[0]
    root = math.sqrt(1 - math.sqrt(2 / (math.pi * math.e)))
    assert found.std == pytest.approx(root, rel=1e-15)


@pytest.mark.parametrize(("name", "closed"), [("gelu", True), ("silu", False)])
def test_the_source_of_moments_is_told(name, closed):
    assert moments_of(name, 1.0)[1] is closed
