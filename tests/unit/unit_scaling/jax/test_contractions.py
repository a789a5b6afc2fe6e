"""Scaled contractions of JAX: biases, masks, dropout, low dtypes."""

import pytest

from amprewrite.errors import ArgumentError

jax = pytest.importorskip("jax")

import jax.numpy as jnp
import numpy as np

from amprewrite.unit_scaling.jax import contractions

DRAWN = np.random.default_rng(0).standard_normal((3, 4, 8), dtype=np.float32)


def test_biases_have_the_factor_of_the_output():
    x, weight = DRAWN[0], DRAWN[1]
    one = contractions.linear(x, weight, jnp.ones(4)) - contractions.linear(x, weight)
    assert jnp.allclose(one, 8**-0.5, atol=1e-6)
    readout = contractions.linear_readout(x, weight, jnp.ones(4))
    assert jnp.allclose(readout, (x @ weight.T + 1) / 8, atol=1e-5)


def test_a_convolution_takes_a_bias_and_no_batch():
    x, weight = DRAWN[0], DRAWN[:2, :, :3]
    y = contractions.conv1d(x, weight, jnp.ones(2), padding=1)
    whole = contractions.conv1d(x[None], weight, padding=1)
    assert y.shape == (2, 8)
    assert jnp.allclose(y, whole[0] + 12**-0.5, atol=1e-5)


def test_masks_of_attention_reach_it():
    query, key, value = DRAWN
    mask = jnp.eye(4, dtype=bool)
    chosen = contractions.scaled_dot_product_attention(query, key, value, mask)
    added = jnp.where(mask, 0.0, -jnp.inf)
    summed = contractions.scaled_dot_product_attention(query, key, value, added)
    assert jnp.allclose(chosen, summed)
    assert jnp.allclose(chosen / value, (chosen / value)[0, 0], rtol=1e-5)


def test_dropout_of_attention_draws():
    given = {"dropout_p": 0.5, "dropout_key": jax.random.key(0)}
    plain = contractions.scaled_dot_product_attention(*DRAWN)
    dropped = contractions.scaled_dot_product_attention(*DRAWN, **given)
    assert not jnp.allclose(plain, dropped)
    with pytest.raises(ArgumentError, match="has no key"):
        contractions.scaled_dot_product_attention(*DRAWN, dropout_p=0.5)


def test_a_low_dtype_stays():
    low = jnp.asarray(DRAWN, "bfloat16")
    assert contractions.scaled_dot_product_attention(*low).dtype == "bfloat16"
    assert contractions.matmul(low, low.mT).dtype == "bfloat16"


def test_a_vector_is_refused():
    with pytest.raises(ArgumentError, match="matmul of shapes"):
        contractions.matmul(jnp.ones(3), jnp.ones((3, 3)))
