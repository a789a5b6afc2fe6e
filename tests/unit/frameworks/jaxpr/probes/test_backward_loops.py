"""Bodies are differentiated as what they compute; rules help where that fails."""

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
import numpy as np
from jax import lax

from amprewrite.frameworks.jaxpr.probes.backward_loops import ReverseProber
from amprewrite.frameworks.jaxpr.program.inline import inline
from amprewrite.plan.sensitivity import Probes

X = jnp.array([0.5, 1.0, 2.0])


def gradient(function, iterations=None):
    """The derivative of the sum by the inputs, as a probed program gives it."""
    program = inline(jax.make_jaxpr(function)(X))

    def total(x):
        probes = Probes("bfloat16", "float32", frozenset(), frozenset())
        prober = ReverseProber(program, probes, {}, iterations or {})
        return prober([x])[0].sum()

    return np.asarray(jax.jit(jax.grad(total))(X))


def ruled(body, derivative, kind):
    """A function with a custom rule."""
    function = kind(body)
    if kind is jax.custom_jvp:
        function.defjvp(lambda p, t: (function(*p), derivative(*p) * t[0]))
    else:
        function.defvjp(lambda x: (function(x), x), lambda x, g: (derivative(x) * g,))
    return function


KINDS = pytest.mark.parametrize("kind", [jax.custom_jvp, jax.custom_vjp])


@KINDS
def test_a_rule_that_is_no_derivative_is_not_used(kind):
    wrong = ruled(jnp.sin, lambda x: 0 * x, kind)
    np.testing.assert_allclose(gradient(lambda x: wrong(x) * 2), 2 * np.cos(X))


@KINDS
def test_a_rule_is_used_where_the_body_gives_no_number(kind):
    root = ruled(lambda x: jnp.sqrt(jnp.abs(x - 1)), lambda x: 0 * x + 7, kind)
    found = gradient(root)
    np.testing.assert_allclose(found, [-0.5 / 0.5**0.5, 7, 0.5], rtol=1e-6)


@KINDS
def test_a_rule_is_used_where_the_body_has_no_derivative(kind):
    def body(x):
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    np.testing.assert_allclose(gradient(ruled(body, jnp.cos, kind)), np.cos(X))


def test_rules_in_rules_and_in_loops():
    inner = ruled(jnp.sin, lambda x: 0 * x, jax.custom_jvp)
    outer = ruled(lambda x: inner(x) * 3, lambda x: 0 * x, jax.custom_vjp)

    def run(x):
        return lax.scan(lambda h, row: (h, outer(row)), 0.0, x)[1]

    np.testing.assert_allclose(gradient(run), 3 * np.cos(X), rtol=1e-6)


def test_a_loop_turns_as_often_as_it_was_seen_to():
    def run(x):
        def go(state):
            return state[0] * 2, state[1] - 1

        return lax.while_loop(lambda s: s[1] > 0, go, (x, 3))[0]

    np.testing.assert_array_equal(gradient(run, {"while": 3}), 8)
    np.testing.assert_array_equal(gradient(run, {"while": 9}), 8)  # ends by itself
    with pytest.raises(ValueError, match="while_loop"):
        gradient(run)
