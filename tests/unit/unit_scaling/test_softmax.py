"""Moments of a softmax agree with samples, limits and identities."""

import math

import numpy as np
import pytest

from amprewrite.unit_scaling.moments import softmax_moments

SAMPLE = 2**18


def sampled(size, spread):
    """E[p^2] and the mean square of the gradient of the logits, of a sample."""
    logits = np.random.default_rng(0).standard_normal((SAMPLE // size, size)) * spread
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    slope = p**2 * (1 - 2 * p + (p**2).sum(axis=1, keepdims=True))
    return (p**2).mean(), slope.mean()


@pytest.mark.parametrize(
    ("size", "spread"),
    [(2, 0.25), (2, 4.0), (3, 1.0), (16, 1.0), (64, 4.0), (16, 16.0)],
)
def test_moments_are_those_of_a_sample(size, spread):
    found = softmax_moments(size, spread)
    assert (found.square, found.slope) == pytest.approx(sampled(size, spread), rel=0.02)


@pytest.mark.parametrize("size", [2, 7, 1000, 50257, 10**7])
def test_equal_logits_share_evenly(size):
    found = softmax_moments(size, 1e-9)
    assert found.square == pytest.approx(size**-2.0, rel=1e-12)
    assert found.slope == pytest.approx(size**-2.0 * (1 - 1 / size), rel=1e-10)


def test_two_logits_are_a_sigmoid():
    """Softmax of two numbers is the sigmoid of their difference, of variance 2."""
    from amprewrite.unit_scaling.moments import moments_of

    sigmoid = moments_of("sigmoid", math.sqrt(2))[0].times(math.sqrt(2))
    found = softmax_moments(2, 1.0)
    assert found.square == pytest.approx(sigmoid.rms**2, rel=1e-12)


def test_both_ways_of_summing_agree_where_they_meet():
    below, above = softmax_moments(100, 1.0), softmax_moments(100, 1.0 + 1e-12)
    assert (below.square, below.slope) == pytest.approx(
        (above.square, above.slope), rel=1e-10
    )


def test_many_logits_are_log_normal():
    found = softmax_moments(10**6, 0.5)
    assert found.square == pytest.approx(math.exp(0.25) * 1e-12, rel=1e-5)


def test_one_number_is_certain():
    found = softmax_moments(1, 1.0)
    assert (found.square, found.slope) == (1.0, 0.0)
