import numpy as np
import pytest

from amprewrite.dtypes import quantise
from amprewrite.dtypes.rounding.scaling import quantise_scaled, scale_of

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
