"""Closed forms are quadrature, to the last digits."""

import math
from typing import Any

import numpy as np
import pytest

from amprewrite.unit_scaling.moments import (
    NONLINEARITIES,
    gaussian_moments,
    hardtanh_moments,
)

CLOSED = sorted(name for name, f in NONLINEARITIES.items() if f.closed)
MULTS = 2.0 ** np.linspace(-6, 6, 301)
FEW = [1 / 64, 0.3, 1.0, 2.5, 16.0, 64.0]
GROWS = {"exp": 4.0}
"""Largest multiplier with finite moments in float64."""


def difference(name, mult):
    """The largest relative difference between the closed form and quadrature."""
    function: Any = NONLINEARITIES[name]
    given = dict(function.parameters)
    closed = function.closed(mult, **given)
    if closed is None:
        return 0.0
    found = gaussian_moments(
        lambda x: function.value(mult * x, **given) / mult,
        lambda x: function.derivative(mult * x, **given),
    )
    return max(
        abs(closed.mean - found.mean) / found.rms,
        abs(closed.variance / found.variance - 1),
        abs(closed.slope / found.slope - 1),
    )


@pytest.mark.parametrize("name", ["gelu", "hardtanh"])
def test_the_closed_form_is_quadrature_on_a_fine_sweep(name):
    assert max(difference(name, mult) for mult in MULTS) < 1e-12


@pytest.mark.parametrize("name", CLOSED)
def test_each_closed_form_is_quadrature(name):
    mults = [mult for mult in FEW if mult <= GROWS.get(name, 64)]
    assert max(difference(name, mult) for mult in mults) < 1e-12


@pytest.mark.parametrize("mult", FEW)
def test_hardtanh_is_the_published_formula(mult):
    inside = math.erf(1 / (mult * math.sqrt(2)))
    edge = math.sqrt(2 / math.pi) / mult * math.exp(-1 / (2 * mult**2))
    found = hardtanh_moments(mult)
    assert found.variance == pytest.approx(
        inside + (1 - inside) / mult**2 - edge, rel=1e-10
    )
    assert found.slope == pytest.approx(inside, rel=1e-15)


def test_hardtanh_does_not_cancel_for_a_large_multiplier():
    mult = 1e6  # nearly a sign: +1/m or -1/m, less what is inside
    assert hardtanh_moments(mult).variance * mult**2 == pytest.approx(1, rel=1e-6)


def test_elu_of_a_small_multiplier_is_left_to_quadrature():
    elu: Any = NONLINEARITIES["elu"].closed
    assert elu(1 / 64, alpha=1.0) is None
    assert elu(0.3, alpha=1.0) is not None
