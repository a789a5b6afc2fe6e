"""Scaled activations of JAX: constraints, dropout, mistakes."""

from typing import Any

import pytest

from amprewrite.errors import ArgumentError, UnitScalingError, UnsupportedError

jax = pytest.importorskip("jax")

import jax.numpy as jnp

from amprewrite.unit_scaling import functional_jax, rule

X = jnp.linspace(-3, 3, 12)


def test_one_factor_both_ways_gives_the_true_gradient():
    forward, _ = rule("silu", 2.0)
    found = jax.vmap(jax.grad(lambda x: functional_jax.silu(x, 2.0)))(X)
    true = jax.vmap(jax.grad(lambda x: jax.nn.silu(2 * x) / 2 * forward))(X)
    assert jnp.allclose(found, true, rtol=1e-5)


def test_hardtanh_is_cut_and_scaled_as_published():
    factors: Any = rule("hardtanh", 4.0)
    forward, backward = factors
    y, back = jax.vjp(lambda x: functional_jax.hardtanh(x, 4.0, None), X)
    assert jnp.allclose(y, X.clip(-0.25, 0.25) * forward)
    assert jnp.allclose(back(jnp.ones_like(X))[0], (abs(X) < 0.25) * backward)


def test_dropout_keeps_the_scale():
    keys = jax.random.split(jax.random.key(0), 3)
    x, gradient = (jax.random.normal(key, (2**18,)) for key in keys[:2])
    y, back = jax.vjp(lambda x: functional_jax.dropout(x, 0.75, key=keys[2]), x)
    scales = float(y.std()), float(back(gradient)[0].std())
    assert scales == pytest.approx((1, 1), abs=0.02)
    assert functional_jax.dropout(x, 0.75, training=False) is x


def test_mistakes_are_told():
    with pytest.raises(ArgumentError, match=r"p=0\.5 has no key; want one"):
        functional_jax.dropout(X)
    with pytest.raises(UnitScalingError, match="unknown constraint"):
        functional_jax.relu(X, constraint="output")
    with pytest.raises(UnsupportedError, match="complex"):
        functional_jax.tanh(X.astype("complex64"))
