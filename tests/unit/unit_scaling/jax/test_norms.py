"""Scaled normalisations of JAX: plain values, unit gradients of weights."""

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp

from amprewrite.unit_scaling import functional_jax

X = jax.random.normal(jax.random.key(0), (1024, 8, 64)) * 3 + 1
WEIGHT, BIAS = jnp.full((8, 64), 2.0), jnp.full((8, 64), 5.0)


def test_values_are_plain():
    y = functional_jax.layer_norm(X, (8, 64), WEIGHT, BIAS)
    assert jnp.allclose(y.mean((1, 2)), 5, atol=1e-4)
    assert jnp.allclose(y.std((1, 2)), 2, atol=1e-4)
    y = functional_jax.rms_norm(X, (8, 64), WEIGHT)
    assert jnp.allclose(jnp.square(y).mean((1, 2)), 4, atol=1e-4)


def test_gradients_of_weights_have_unit_scale():
    def function(weight, bias, other):
        y = functional_jax.layer_norm(X, (8, 64), weight, bias)
        return y + functional_jax.rms_norm(X - 1, (8, 64), other)

    y, back = jax.vjp(function, WEIGHT, BIAS, WEIGHT)
    found = back(jax.random.normal(jax.random.key(1), y.shape))
    assert [float(g.std()) for g in found] == pytest.approx([1, 1, 1], abs=0.15)


def test_a_low_dtype_stays():
    low = X.astype("bfloat16")
    assert functional_jax.layer_norm(low, (64,)).dtype == "bfloat16"
    assert functional_jax.rms_norm(low, (64,), WEIGHT[0]).dtype == "bfloat16"
