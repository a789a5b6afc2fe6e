"""Rounding to 8-bit formats against a search over all values, and ml_dtypes."""

from fractions import Fraction

import numpy as np
import pytest

from amprewrite.dtypes import FORMATS, format_of, uniform_draws
from amprewrite.dtypes.rounding import quantise
from amprewrite.errors import PromotionError

ml_dtypes = pytest.importorskip("ml_dtypes")

EIGHT_BITS = sorted(n for n in FORMATS if n.startswith("float8") and "e8m0" not in n)
SAMPLES = 10**6


def values_of(name):
    """Every finite value of a format, ascending, one zero."""
    found = np.arange(256, dtype=np.uint8).view(name).astype(np.float64)
    return np.unique(found[np.isfinite(found)])


def inputs_of(name):
    """A million numbers: at random, ties, subnormals, zeros, beyond, non-finite."""
    rng = np.random.default_rng(0)
    values = values_of(name).astype(np.float32)
    ties = (values[1:] + values[:-1]) / 2
    near = [np.nextafter(ties, s) for s in (-np.inf, np.inf)]
    largest = np.float32(format_of(name).max)
    special = [0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf, 1e-45, -1e-45]
    special += [3e38, -3e38, largest * 1.03, largest * 1.07, largest * -2]
    chosen = np.concatenate([values, ties, *near, np.array(special, np.float32)])
    bits = rng.integers(0, 2**32, SAMPLES // 2, dtype=np.uint32).view(np.float32)
    scales = np.exp2(rng.uniform(-20, 20, SAMPLES - SAMPLES // 2 - chosen.size))
    normal = (rng.standard_normal(scales.size) * scales).astype(np.float32)
    return np.concatenate([chosen, bits, normal])


def nearest(x, name):
    """The nearest value by a search in float64; of two, that with the even code."""
    values = values_of(name)
    even = np.arange(values.size) - np.searchsorted(values, 0.0)
    above = np.searchsorted(values, x.astype(np.float64)).clip(1, values.size - 1)
    low, high = values[above - 1], values[above]
    left, right = x - low, high - x
    up = (right < left) | ((right == left) & (even[above] % 2 == 0))
    return np.where(up, high, low)


@pytest.mark.parametrize("name", EIGHT_BITS)
def test_nearest_is_that_of_a_search(name):
    x = inputs_of(name)
    x = x[np.isfinite(x)]
    assert x.size > 0.9 * SAMPLES
    found = quantise(x, name)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, nearest(x.astype(np.float64), name))


@pytest.mark.parametrize("name", EIGHT_BITS)
def test_float64_is_rounded_once(name):
    tie = 1 + 2.0 ** -(format_of(name).mantissa_bits + 1)
    above = np.array([tie, np.nextafter(tie, 2), np.nextafter(tie, 1)])
    assert np.ptp(above.astype(np.float32)) == 0
    next_to_one = 1 + 2.0 ** -format_of(name).mantissa_bits
    assert quantise(above, name).tolist() == [1, next_to_one, 1]


@pytest.mark.parametrize("name", EIGHT_BITS)
def test_zeros_and_what_is_not_finite(name):
    target = format_of(name)
    x = np.array([0.0, -0.0, -1e-30, np.nan, np.inf, -np.inf], np.float32)
    found = quantise(x, name)
    assert (found[:3] == 0).all()
    assert np.signbit(found[:3]).tolist() == [
        False,
        target.has_negative_zero,
        target.has_negative_zero,
    ]
    assert np.isnan(found[3])
    expected = [np.inf, -np.inf] if target.has_infinities else [np.nan, np.nan]
    np.testing.assert_array_equal(found[4:], expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bits_stay(dtype):
    x = np.array([1.06, -300.0, 2**-9, 1e-7], dtype)
    found = quantise(x, "float8_e4m3fn")
    assert found.dtype == dtype
    assert found.astype(float).tolist() == [1, -288, 2**-9, 0]


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2fnuz"])
def test_stochastic_rounding_is_unbiased(name):
    """The share rounded up is within five standard deviations of its probability."""
    target, count = format_of(name), 2**18
    small = target.smallest_subnormal
    for x in (1 + 0.3 * target.smallest_normal, 1.01, -1.03, 0.3 * small, 7.2 * small):
        number = np.float32(x)
        repeated = np.full(count, number, np.float32)
        found = quantise(repeated, name, draws=uniform_draws(repeated, 3))
        values = values_of(name)
        place = np.searchsorted(values, number)
        below, above = values[place - 1], values[place]
        share = float(
            (Fraction(float(number)) - Fraction(below))
            / (Fraction(above) - Fraction(below))
        )
        assert set(np.unique(found).tolist()) == {below, above}
        spread = (share * (1 - share) / count) ** 0.5
        assert abs((found == above).mean() - share) < 5 * spread


def test_stochastic_rounding_keeps_values_saturates_and_repeats():
    x = np.concatenate([values_of("float8_e5m2"), [1e9, -1e9]]).astype(np.float32)
    draws = uniform_draws(x, 1)
    found = quantise(x, "float8_e5m2", draws=draws)
    np.testing.assert_array_equal(found, x.clip(-57344, 57344))
    noise = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    once, again, other = (
        quantise(noise, "float8_e5m2", draws=uniform_draws(noise, seed))
        for seed in (1, 1, 2)
    )
    assert (once == again).all()
    assert (once != other).any()


def test_errors():
    x = np.ones(3, np.float32)
    with pytest.raises(PromotionError, match=r"want an 8-bit float.*float8_e4m3fn"):
        quantise(x, "bfloat16")
    with pytest.raises(PromotionError, match="want an 8-bit float with a sign"):
        quantise(x, "float8_e8m0fnu")
    with pytest.raises(
        PromotionError, match=r"array of int32 to 8 bits; want one of floats"
    ):
        quantise(np.ones(3, np.int32), "float8_e5m2")
    with pytest.raises(PromotionError, match=r"float8_e5m2 to 8.*16 bits or more"):
        quantise(x.astype("float8_e5m2"), "float8_e4m3fn")
