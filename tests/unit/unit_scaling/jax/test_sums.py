"""Scaled sums of JAX, and residual branches with true gradients."""

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp

from amprewrite.unit_scaling import functional_jax

X = jnp.linspace(-1, 1, 6)


def test_one_element_shifts_and_nothing_else():
    assert jnp.allclose(functional_jax.add(X, 2.0), X + 2)


def test_a_branch_is_weighed_forward_where_it_ends_and_backward_where_it_starts():
    def function(x):
        return functional_jax.residual_apply(lambda z: 3 * z, x, tau=0.5)

    y, back = jax.vjp(function, X)
    factor = (0.5 * 3 + 1) / 1.25**0.5
    assert jnp.allclose(y, X * factor)
    assert jnp.allclose(back(jnp.ones_like(X))[0], factor)


def test_inside_of_a_branch_gradients_are_not_weighed():
    _, back = jax.vjp(lambda a, b: functional_jax.residual_add(a, b, 0.5), X, X)
    assert jnp.array_equal(jnp.stack(back(X)), jnp.stack([X, X]))
