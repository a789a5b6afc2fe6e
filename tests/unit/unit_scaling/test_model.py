"""Moments give scales."""

import pytest

from amprewrite.unit_scaling.moments import Moments


def test_scales_of_moments():
    found = Moments(mean=3.0, variance=16.0, slope=0.25)
    assert (found.std, found.rms, found.gradient) == (4.0, 5.0, 0.5)


def test_a_factor_multiplies_every_scale():
    found = Moments(mean=3.0, variance=16.0, slope=0.25).times(2)
    assert (found.mean, found.std, found.rms, found.gradient) == (6, 8, 10, 1)


@pytest.mark.parametrize(
    ("given", "usable"),
    [
        ((0.0, 1.0, 1.0), True),
        ((0.0, 0.0, 1.0), False),
        ((0.0, 1.0, 0.0), False),
        ((0.0, float("inf"), 1.0), False),
        ((float("nan"), 1.0, 1.0), False),
        ((0.0, 1.0, float("nan")), False),
    ],
)
def test_factors_need_scales_that_are_finite_and_not_zero(given, usable):
    assert Moments(*given).is_usable() is usable
