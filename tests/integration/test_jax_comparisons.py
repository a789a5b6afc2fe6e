"""Gradients inside a program that ask which value a maximum took."""

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp

import amprewrite
from tests.jax_programs import normal, relative_error, weight

W = weight(32, 32)
X = normal(16, 32)


def maximum(w, x):
    held = jnp.tanh(x @ w) + 0.1
    return jnp.maximum(held, jnp.sin(x)) @ w


def clipped(w, x):
    held = jnp.tanh(x @ w) + x
    return jnp.clip(held, -jnp.abs(x), jnp.abs(x)) @ w


@pytest.mark.parametrize("function", [maximum, clipped])
@pytest.mark.parametrize("placement", ["promote", "optimal"])
def test_gradients_go_where_they_went(function, placement):
    def gradient(w, x):
        return jax.grad(lambda w: (function(w, x) ** 2).mean())(w)

    converted = amprewrite.convert(
        gradient, args=(W, X), placement=placement, target="compiled"
    )
    expected = jax.jit(gradient)(W, X)
    assert relative_error(jax.jit(converted)(W, X), expected) < 3e-2
