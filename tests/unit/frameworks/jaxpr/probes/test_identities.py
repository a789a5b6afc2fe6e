"""Probes change nothing, and their tokens' derivatives are what roundings do."""

from typing import Any

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
import numpy as np
from jax import lax

from amprewrite.frameworks.jaxpr.probes.runner import OPTIONS
from amprewrite.frameworks.jaxpr.probes.sensitivity import Prober, Rounding
from amprewrite.frameworks.jaxpr.program.inline import inline
from amprewrite.plan.sensitivity import Probes

pytestmark = pytest.mark.usefixtures("optimized_xla")

X = jnp.linspace(0.1, 2, 7)
POINTS = jnp.array([0.5, 1.0, 2.0])


def test_the_error_of_a_rounding():
    value = jnp.array([1.0, 1.001, -jnp.inf, 1e5])
    finite = np.array([1.0, 1.001, 0.0, 1e5], np.float32)
    expected = finite.astype(jnp.bfloat16).astype(np.float32) - finite
    found = jax.jit(Rounding("bfloat16").error)(value)
    np.testing.assert_array_equal(found, expected)
    assert jnp.isinf(Rounding("float16").error(value)[3])
    assert Rounding("float16", saturates=True).error(value)[3] == 65504 - 1e5


def probed(tokens):
    program = inline(jax.make_jaxpr(lambda x: jnp.sin(x * 3) + x)(X))
    probes = Probes("bfloat16", "float32", frozenset(), frozenset())
    return Prober(program, probes, tokens, {})


def test_the_derivative_by_a_token_is_what_the_rounding_does():
    tokens = {"mul": jnp.zeros(()), ("input_0", "add"): jnp.zeros(())}
    (made,) = probed(tokens)([X])
    np.testing.assert_array_equal(made, jnp.sin(X * 3) + X)

    def total(stored, read):
        tokens = {"mul": stored, ("input_0", "add"): read}
        return probed(tokens)([X])[0].sum()

    stored, read = jax.grad(total, argnums=(0, 1))(*tokens.values())
    error = Rounding("bfloat16").error
    assert stored == pytest.approx(float(jnp.sum(jnp.cos(X * 3) * error(X * 3))))
    assert read == pytest.approx(float(error(X).sum()))


def test_tokens_can_be_changed_for_a_while():
    prober = probed({"mul": 1})
    with prober.using({}):
        assert prober.tokens == {}
    assert prober.tokens == {"mul": 1}


def test_the_step_that_fails_is_remembered():
    def run(x):
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct((7,), np.float32), x * 3)

    def outputs(token):
        with prober.using({"mul": token}):
            return prober([X])

    program = inline(jax.make_jaxpr(run)(X))
    probes = Probes("bfloat16", "float32", frozenset(), frozenset())
    prober = Prober(program, probes, {}, {})
    with pytest.raises(ValueError, match="do not support JVP"):
        jax.vjp(outputs, jnp.zeros(()))
    assert prober.failed is not None
    assert prober.failed.primitive == "pure_callback"


def test_errors_pass_a_stopped_gradient():
    program = inline(jax.make_jaxpr(lambda x: lax.stop_gradient(x * 3))(X))

    def total(token):
        probes = Probes("bfloat16", "float32", frozenset(), frozenset())
        prober = Prober(program, probes, {"mul": token}, {})
        return prober([X])[0].sum()

    assert jax.grad(total)(jnp.zeros(())) != 0


@pytest.mark.parametrize("low", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    ("op", "function"),
    [
        ("mul", lambda x: x * 0.3),
        ("integer_pow", lambda x: x**7),
        ("logistic", jax.nn.sigmoid),
    ],
)
def test_what_a_low_kernel_rounds_inside_is_part_of_its_error(low, op, function):
    """The values are low ones, so that only the kernel rounds."""
    x = Rounding(low).rounded(X)
    program = inline(jax.make_jaxpr(function)(x))

    def total(token):
        probes = Probes(low, "float32", frozenset(), frozenset())
        return Prober(program, probes, {op: token}, {})([x])[0].sum()

    found = jax.grad(total)(jnp.zeros(()))
    kernel = jax.jit(function, compiler_options=OPTIONS)
    error = np.asarray(kernel(x.astype(low)), np.float64) - np.asarray(function(x))
    assert float(found) == pytest.approx(error.sum(), rel=1e-2, abs=1e-6)
    alone = np.asarray(Rounding(low).error(function(x)), np.float64).sum()
    assert float(found) != pytest.approx(alone, rel=5e-2)


def test_values_pass_a_probe_of_a_staged_op_with_their_gradient():
    def run(token, x):
        program = inline(jax.make_jaxpr(lambda x: jnp.sin(0.3 * x**3))(x))
        probes = Probes("bfloat16", "float32", frozenset(), frozenset())
        tokens: Any = {"integer_pow": token, "mul": token}
        return Prober(program, probes, tokens, {})([x])[0].sum()

    found = jax.grad(run, argnums=1)(jnp.zeros(()), X)
    expected = jax.grad(lambda x: jnp.sin(0.3 * x**3).sum())(X)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def gradient(function, iterations=None):
    """The derivative of the sum by the inputs, as a probed program gives it."""
    program = inline(jax.make_jaxpr(function)(POINTS))

    def total(x):
        probes = Probes("bfloat16", "float32", frozenset(), frozenset())
        prober = Prober(program, probes, {}, iterations or {})
        return prober([x])[0].sum()

    return np.asarray(jax.jit(jax.grad(total))(POINTS))


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
    np.testing.assert_allclose(gradient(lambda x: wrong(x) * 2), 2 * np.cos(POINTS))


@KINDS
def test_a_rule_is_used_where_the_body_gives_no_number(kind):
    root = ruled(lambda x: jnp.sqrt(jnp.abs(x - 1)), lambda x: 0 * x + 7, kind)
    found = gradient(root)
    np.testing.assert_allclose(found, [-0.5 / 0.5**0.5, 7, 0.5], rtol=1e-6)


@KINDS
def test_a_rule_is_used_where_the_body_has_no_derivative(kind):
    def body(x):
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    np.testing.assert_allclose(gradient(ruled(body, jnp.cos, kind)), np.cos(POINTS))


def test_rules_in_rules_and_in_loops():
    inner = ruled(jnp.sin, lambda x: 0 * x, jax.custom_jvp)
    outer = ruled(lambda x: inner(x) * 3, lambda x: 0 * x, jax.custom_vjp)

    def run(x):
        return lax.scan(lambda h, row: (h, outer(row)), 0.0, x)[1]

    np.testing.assert_allclose(gradient(run), 3 * np.cos(POINTS), rtol=1e-6)


def test_a_loop_turns_as_often_as_it_was_seen_to():
    def run(x):
        def go(state):
            return state[0] * 2, state[1] - 1

        return lax.while_loop(lambda s: s[1] > 0, go, (x, 3))[0]

    np.testing.assert_array_equal(gradient(run, {"while": 3}), 8)
    np.testing.assert_array_equal(gradient(run, {"while": 9}), 8)  # ends by itself
    with pytest.raises(ValueError, match="while_loop"):
        gradient(run)
