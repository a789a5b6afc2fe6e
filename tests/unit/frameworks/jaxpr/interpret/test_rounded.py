"""Casts as JAX makes them, and those that XLA does not undo."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp

from amprewrite.frameworks.jaxpr.compat.primitives import convert
from amprewrite.frameworks.jaxpr.interpret.interpreter import widened, widens

LOW = ("bfloat16", "float16")


def all_numbers(dtype):
    return jnp.asarray(np.arange(1 << 16, dtype=np.uint16).view(jnp.dtype(dtype)))


def cast_by_jax(value, dtype):
    return jax.lax.convert_element_type(value, jnp.dtype(dtype))


@pytest.mark.parametrize("dtype", ["float32", *LOW])
def test_a_plain_cast_is_that_of_jax(dtype):
    weak = jax.lax.full_like(1.0, 2.0)
    arrays = jnp.ones(3), jnp.ones(3, dtype), jnp.arange(3), jnp.asarray(weak)

    def program(cast):
        return str(jax.make_jaxpr(lambda *xs: [cast(x, dtype) for x in xs])(*arrays))

    assert program(convert) == program(cast_by_jax)
    for value in (*arrays, 2.5, np.float32(2.5), np.ones(3, np.float32)):
        found, wanted = convert(value, dtype), cast_by_jax(value, dtype)
        assert jax.typeof(found) == jax.typeof(wanted)
        np.testing.assert_array_equal(found, wanted)


def test_a_dtype_that_settings_replace_is_left_to_jax():
    with pytest.warns(UserWarning, match="truncated to dtype float32"):
        assert convert(jnp.ones(3), "float64").dtype == jnp.float32


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("jitted", [False, True])
def test_every_number_is_what_it_was(dtype, jitted):
    values = all_numbers(dtype)

    def widen(x):
        return widened(x, "float32")

    found = (jax.jit(widen) if jitted else widen)(values)
    expected = np.asarray(values).astype(np.float32)
    assert found.dtype == jnp.float32
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))


@pytest.mark.parametrize("dtype", LOW)
def test_xla_gives_what_is_stored_and_not_what_was_computed(dtype):
    def greatest(x, w):
        held = (x * w).astype(dtype) * x[0].astype(dtype)
        most = held.max(axis=-1, keepdims=True)
        return widened(held, "float32") == widened(most, "float32")

    x, w = np.random.default_rng(0).standard_normal((2, 64, 32)).astype(np.float32)
    found = jax.jit(greatest)(x, w)
    assert (found.sum(axis=-1) >= 1).all()
    np.testing.assert_array_equal(found, greatest(x, w))


@pytest.mark.parametrize("dtype", LOW)
def test_a_derivative_passes(dtype):
    def summed(x):
        return (widened(x, "float32") * 3).sum()

    x = jnp.ones(4, dtype)
    found = jax.jit(jax.vmap(jax.grad(summed)))(jnp.stack([x, x]))
    assert found.dtype == jnp.dtype(dtype)
    np.testing.assert_array_equal(found.astype(np.float32), np.full((2, 4), 3.0))


def test_only_more_bytes_widen():
    low = jnp.ones((), "bfloat16")
    assert widens(low, "float32")
    assert not widens(low, "float16")
    assert not widens(jnp.ones((), "float32"), "bfloat16")
    assert not widens(jnp.ones((), "complex64"), "float32")
