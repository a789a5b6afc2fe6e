"""Casts to 8 bits: the same bits in NumPy, torch and JAX, and those of ml_dtypes."""

import importlib.util

import numpy as np
import pytest

from amprewrite.dtypes import format_of, saturating_cast
from amprewrite.dtypes.rounding import as_dtype
from amprewrite.errors import PromotionError
from tests.unit.dtypes.test_grid import EIGHT_BITS, inputs_of

IN_TORCH = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")


def has(library):
    return importlib.util.find_spec(library) is not None


@pytest.mark.parametrize("name", EIGHT_BITS)
def test_all_libraries_give_the_same_bits(name):
    x = inputs_of(name)
    assert x.size == 10**6
    found = saturating_cast(x, name).view(np.uint8)
    inside = np.abs(x) <= format_of(name).max
    np.testing.assert_array_equal(found[inside], x[inside].astype(name).view(np.uint8))
    assert set(found[np.isnan(x)]) == {format_of(name).nan_bits}
    beyond = np.isfinite(x) & ~inside
    largest = np.array([format_of(name).max]).astype(name).view(np.uint8)[0]
    assert set(found[beyond]) == {largest, largest | 0x80}
    if has("jax"):
        import jax
        import jax.numpy as jnp

        for cast in (saturating_cast, jax.jit(saturating_cast, static_argnums=1)):
            other = np.asarray(cast(jnp.asarray(x), name)).view(np.uint8)
            np.testing.assert_array_equal(other, found)
    if has("torch") and name in IN_TORCH:
        import torch

        other = saturating_cast(torch.from_numpy(x), name).view(torch.uint8).numpy()
        np.testing.assert_array_equal(other, found)


@pytest.mark.parametrize("name", IN_TORCH)
def test_libraries_agree_on_given_draws(name):
    torch, jnp = pytest.importorskip("torch"), pytest.importorskip("jax.numpy")
    x = inputs_of(name)
    draws = np.random.default_rng(1).random(x.shape, np.float32)
    found = saturating_cast(x, name, draws=draws).view(np.uint8)
    other = saturating_cast(
        torch.from_numpy(x), name, draws=torch.from_numpy(draws)
    ).view(torch.uint8)
    third = saturating_cast(jnp.asarray(x), name, draws=jnp.asarray(draws))
    np.testing.assert_array_equal(other.numpy(), found)
    np.testing.assert_array_equal(np.asarray(third).view(np.uint8), found)
    assert (found != saturating_cast(x, name).view(np.uint8)).mean() > 0.05


def test_a_dtype_that_the_library_lacks():
    torch = pytest.importorskip("torch")
    with pytest.raises(PromotionError, match="torch has no dtype float8_e3m4"):
        saturating_cast(torch.ones(3), "float8_e3m4")
    with pytest.raises(PromotionError, match=r"numpy has no dtype float7; .*ml_dtypes"):
        as_dtype(np.ones(3), "float7")
