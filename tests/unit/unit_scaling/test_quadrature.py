"""Quadrature is close to float64 for smooth functions, kinks and jumps."""

import math

import numpy as np
import pytest

from amprewrite.errors import UnitScalingError
from amprewrite.unit_scaling.moments import NODES, WEIGHTS, gaussian_moments


def test_nodes_have_both_ends_and_are_exact_for_polynomials():
    assert (NODES[0], NODES[-1]) == (-1, 1)
    assert np.sum(WEIGHTS) == pytest.approx(2, rel=1e-14)
    assert np.sum(WEIGHTS * NODES**28) == pytest.approx(2 / 29, rel=1e-13)


def test_moments_of_a_line_are_those_of_the_number():
    found = gaussian_moments(lambda x: 3 * x + 2, lambda x: np.full_like(x, 3.0))
    assert found.mean == pytest.approx(2, rel=1e-14)
    assert found.variance == pytest.approx(9, rel=1e-14)
    assert found.slope == pytest.approx(9, rel=1e-14)


def test_a_variance_does_not_cancel_beside_a_large_mean():
    found = gaussian_moments(lambda x: x + 1e6, np.ones_like)
    assert found.variance == pytest.approx(1, rel=1e-9)


@pytest.mark.parametrize("at", [-2.5, -0.4999999, 0.0, 0.123456, 0.5, 1 / 3, 3.7])
def test_a_jump_is_found_wherever_it_is(at):
    found = gaussian_moments(lambda x: 1.0 * (x > at), lambda x: 1.0 * (x > at))
    share = math.erfc(at / math.sqrt(2)) / 2
    assert found.mean == pytest.approx(share, rel=1e-12)
    assert found.variance == pytest.approx(share * (1 - share), rel=1e-12)


def test_growth_is_integrated_as_far_as_it_counts():
    found = gaussian_moments(lambda x: np.exp(4 * x), lambda x: 4 * np.exp(4 * x))
    assert found.mean == pytest.approx(math.exp(8), rel=1e-12)
    assert found.slope == pytest.approx(16 * math.exp(32), rel=1e-12)


def test_a_function_that_is_not_finite_is_refused():
    with pytest.raises(UnitScalingError, match="no finite moments"):
        gaussian_moments(np.log, lambda x: 1 / x)


def test_a_function_of_endless_jumps_is_refused():
    def noise(x):
        return np.modf(np.sin(x * 1e6) * 1e6)[0]

    with pytest.raises(UnitScalingError, match="does not converge"):
        gaussian_moments(noise, noise)
