"""Products with delayed scales: state in and out."""

from typing import Any

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
import numpy as np

from amprewrite.dtypes.rounding import quantise_scaled
from amprewrite.training.jax import DelayedRule, DelayedScales, delayed_dot

E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"
RULE = DelayedRule(4)
X = np.random.default_rng(0).normal(size=(2, 3, 8)).astype(np.float32)
W = np.random.default_rng(1).normal(size=(8, 5)).astype(np.float32)


def loss(x, w, scales):
    y, made = delayed_dot(x, w, scales, RULE)
    return (y**2).sum(), (y, made)


STEP = jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))


def run(*inputs):
    scales: Any = DelayedScales.init(RULE)
    y: Any = None
    dx, dw = y, y
    for x in inputs:
        (_, (y, made)), (dx, dw, cotangent) = STEP(x, W, scales)
        scales = made.after(cotangent)
    return y, dx, dw, scales


def test_stationary_numbers_are_those_of_current_scaling():
    y, dx, dw, scales = run(X, X, X)
    one, two = (quantise_scaled(a, E4M3, "current") for a in (X, W))
    np.testing.assert_allclose(y, one @ two, rtol=1e-5, atol=1e-5)
    g = quantise_scaled(2 * np.asarray(y), E5M2, "current")
    np.testing.assert_allclose(dx, g @ two.T, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(
        dw, one.reshape(-1, 8).T @ g.reshape(-1, 5), rtol=1e-5, atol=1e-4
    )
    for scale in scales:
        assert (np.asarray(scale.amaxes) > 0).tolist() == [True] * 3 + [False]
        assert scale.saturated == 0


def test_a_jump_is_saturated_and_counted():
    y, _, _, scales = run(X, X * 1e4)
    assert scales.left.saturated == X.size
    assert scales.right.saturated == 0
    assert jnp.abs(y).max() < 100
    assert scales.left.amaxes[0] == np.abs(X).max() * np.float32(1e4)


def test_the_state_is_a_pytree():
    scales = run(X)[3]
    leaves, tree = jax.tree.flatten(scales)
    assert len(leaves) == 6
    again = jax.tree.unflatten(tree, [np.asarray(x) for x in leaves])
    one, two = (STEP(X, W, s)[0][1][0] for s in (scales, again))
    assert jnp.array_equal(one, two)
