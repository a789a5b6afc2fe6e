"""Scaled contractions of JAX: biases, masks, dropout, low dtypes."""

import pytest

from amprewrite.errors import ArgumentError

jax = pytest.importorskip("jax")

import jax.numpy as jnp
import numpy as np

from amprewrite.unit_scaling import functional_jax

DRAWN = np.random.default_rng(0).standard_normal((3, 4, 8), dtype=np.float32)


def test_biases_have_the_factor_of_the_output():
    x, weight = DRAWN[0], DRAWN[1]
    one = functional_jax.linear(x, weight, jnp.ones(4)) - functional_jax.linear(
        x, weight
    )
    assert jnp.allclose(one, 8**-0.5, atol=1e-6)
    readout = functional_jax.linear_readout(x, weight, jnp.ones(4))
    assert jnp.allclose(readout, (x @ weight.T + 1) / 8, atol=1e-5)


def test_a_convolution_takes_a_bias_and_no_batch():
    x, weight = DRAWN[0], DRAWN[:2, :, :3]
    y = functional_jax.conv1d(x, weight, jnp.ones(2), padding=1)
    whole = functional_jax.conv1d(x[None], weight, padding=1)
    assert y.shape == (2, 8)
    assert jnp.allclose(y, whole[0] + 12**-0.5, atol=1e-5)


def test_masks_of_attention_reach_it():
    query, key, value = DRAWN
    mask = jnp.eye(4, dtype=bool)
    chosen = functional_jax.scaled_dot_product_attention(query, key, value, mask)
    added = jnp.where(mask, 0.0, -jnp.inf)
    summed = functional_jax.scaled_dot_product_attention(query, key, value, added)
    assert jnp.allclose(chosen, summed)
    assert jnp.allclose(chosen / value, (chosen / value)[0, 0], rtol=1e-5)


def test_dropout_of_attention_draws():
    given = {"dropout_p": 0.5, "dropout_key": jax.random.key(0)}
    plain = functional_jax.scaled_dot_product_attention(*DRAWN)
    dropped = functional_jax.scaled_dot_product_attention(*DRAWN, **given)
    assert not jnp.allclose(plain, dropped)
    with pytest.raises(ArgumentError, match="has no key"):
        functional_jax.scaled_dot_product_attention(*DRAWN, dropout_p=0.5)


def test_a_low_dtype_stays():
    low = jnp.asarray(DRAWN, "bfloat16")
    assert functional_jax.scaled_dot_product_attention(*low).dtype == "bfloat16"
    assert functional_jax.matmul(low, low.mT).dtype == "bfloat16"


def test_a_vector_is_refused():
    with pytest.raises(ArgumentError, match="matmul of shapes"):
        functional_jax.matmul(jnp.ones(3), jnp.ones((3, 3)))
