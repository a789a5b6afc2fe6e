import numpy as np
import pytest

from amprewrite.dtypes import quantise
from amprewrite.dtypes.formats import EIGHT_BIT_FLOATS, format_of
from amprewrite.dtypes.rounding import quantise_by, quantise_scaled, scale_of

pytest.importorskip("ml_dtypes")


def test_no_scale_is_plain_rounding():
    x = np.random.default_rng(0).standard_normal(100).astype(np.float32) * 1e-4
    found = quantise_scaled(x, "float8_e4m3fn", "none")
    np.testing.assert_array_equal(found, quantise(x, "float8_e4m3fn"))
    assert (found == 0).all()


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz"])
@pytest.mark.parametrize("factor", [2.0**-40, 1.0, 3e4])
def test_a_current_scale_keeps_the_relative_error(name, factor):
    x = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    found = quantise_scaled(x * np.float32(factor), name, "current")
    error = np.linalg.norm(found - x * factor) / np.linalg.norm(x * factor)
    assert 0.01 < error < (0.06 if "e5m2" in name else 0.03)
    assert abs(found).max() >= abs(x).max() * factor * 0.9


def test_a_scale_is_a_power_of_two():
    x = np.array([3.0, 1.0, 2.0**-12, np.inf, np.nan], np.float32)
    found = quantise_scaled(x, "float8_e4m3fn", "current")
    assert found[:3].tolist() == x[:3].tolist()
    assert np.isnan(found[3:]).all()


def test_the_scale_alone():
    x = np.array([3.0, -7.0, np.inf], np.float32)
    assert scale_of(x, "float8_e4m3fn") == 64  # 7 * 64 = 448, the largest
    assert scale_of(x[:2] * 0, "float8_e4m3fn") == 256


def test_zeros_and_empty_arrays():
    for x in (np.zeros(3, np.float32), np.zeros((0, 2), np.float32)):
        np.testing.assert_array_equal(quantise_scaled(x, "float8_e5m2", "current"), x)


def test_libraries_agree():
    torch, jnp = pytest.importorskip("torch"), pytest.importorskip("jax.numpy")
    x = np.random.default_rng(1).standard_normal((64, 64)).astype(np.float32) * 1e-6
    found = quantise_scaled(x, "float8_e5m2", "current")
    other = quantise_scaled(torch.from_numpy(x), "float8_e5m2", "current")
    third = quantise_scaled(jnp.asarray(x), "float8_e5m2", "current")
    np.testing.assert_array_equal(other.numpy(), found)
    np.testing.assert_array_equal(np.asarray(third), found)


def arrays_of(x):
    """One array for each library that is installed."""
    torch, jnp = pytest.importorskip("torch"), pytest.importorskip("jax.numpy")
    arrays = {"numpy": x, "torch": torch.from_numpy(x)}
    return arrays if x.dtype == np.float64 else {**arrays, "jax": jnp.asarray(x)}


def numbers(array):
    return np.asarray(array).astype(np.float64)


FORMATS = [format_of(name) for name in EIGHT_BIT_FLOATS]
EXPONENTS = [-149, -140, -126, -110, -100, -30, 0, 30, 100, 110, 120, 126, 127]


@pytest.mark.parametrize("target", FORMATS, ids=lambda target: target.name)
def test_no_size_is_too_large_or_too_small(target):
    """The relative error of numbers near the largest one is that of the format."""
    draws = np.random.default_rng(0)
    for exponent in EXPONENTS:
        bits = 1 + draws.random(64)
        signs = draws.choice([-1.0, 1.0], 64)
        x = (np.ldexp(bits, exponent) * signs).astype(np.float32)
        for library, array in arrays_of(x).items():
            if library == "jax" and exponent < -125:
                continue  # XLA takes subnormal numbers for zeros
            result = numbers(quantise_scaled(array, target.name, "current"))
            assert np.isfinite(result).all(), (library, exponent)
            error = abs(result - x).astype(np.float64) / abs(x.astype(np.float64))
            spacing = np.ldexp(1.0, -149) / abs(x.astype(np.float64))
            bound = 2.0 ** -(target.mantissa_bits + 1)
            top = exponent == 127  # has no next power of two to round to
            assert (error <= bound * (1 + top) + spacing / 2).all(), (library, exponent)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("target", FORMATS, ids=lambda target: target.name)
def test_the_largest_number_of_a_dtype_stays_finite(target, dtype):
    x = np.array([format_of(dtype).max, 1.0, -format_of(dtype).max], dtype)
    for array in arrays_of(x).values():
        result = numbers(quantise_scaled(array, target.name, "current"))
        assert np.isfinite(result).all()
        share = 2.0 - 2.0**-target.mantissa_bits
        assert abs(result[0]) == abs(result[2])
        assert float(abs(result[0]) / x[0]) == pytest.approx(share / 2, rel=1e-2)


@pytest.mark.parametrize("exponent", [-149, -60, 0, 60, 126])
@pytest.mark.parametrize("target", FORMATS, ids=lambda target: target.name)
def test_infinities_and_nan_are_those_of_plain_rounding(target, exponent):
    rest = [np.inf, -np.inf, np.nan, 0.0, -0.0]
    x = np.array([np.ldexp(1.0, exponent), *rest], np.float32)
    plain = quantise(np.array([1.0, *rest], np.float32), target.name)
    for array in arrays_of(x).values():
        result = numbers(quantise_scaled(array, target.name, "current"))
        np.testing.assert_array_equal(result[1:], plain[1:].astype(np.float64))
        np.testing.assert_array_equal(np.signbit(result[4:]), np.signbit(plain[4:]))


@pytest.mark.parametrize("target", FORMATS, ids=lambda target: target.name)
def test_a_factor_that_is_a_power_of_two_changes_no_bit(target):
    x = np.random.default_rng(1).standard_normal(256).astype(np.float32)
    result = quantise_scaled(x, target.name, "current")
    for exponent in (-120, -101, -64, 64, 101, 120):
        scaled = np.ldexp(x, exponent)
        other = quantise_scaled(scaled, target.name, "current")
        normal = abs(np.ldexp(result.astype(np.float64), exponent)) >= 2.0**-126
        np.testing.assert_array_equal(other[normal], np.ldexp(result, exponent)[normal])


def test_a_number_far_beyond_a_given_scale_saturates():
    arrays = arrays_of(np.array([1e30, -1e30, 1.0], np.float32))
    del arrays["numpy"]  # it warns of the overflow
    for array in arrays.values():
        scale = scale_of(array[2:] * 2.0**-110, "float8_e4m3fn")
        result = numbers(quantise_by(array, "float8_e4m3fn", (scale,)))
        assert result.tolist() == [448 / float(scale) * sign for sign in (1, -1, 1)]
