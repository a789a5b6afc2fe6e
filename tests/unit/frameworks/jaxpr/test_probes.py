"""Probes change nothing, and their tokens' derivatives are what roundings do."""

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax import lax  # noqa: E402

from amprewrite.frameworks.jaxpr.inline import inline  # noqa: E402
from amprewrite.frameworks.jaxpr.probes import Prober, Rounding  # noqa: E402

X = jnp.linspace(0.1, 2, 7)


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
    roundings = Rounding("bfloat16"), frozenset[str]()
    return Prober(program, roundings, tokens, {}, {})


def test_the_derivative_by_a_token_is_what_the_rounding_does():
    tokens = {"mul": jnp.zeros(()), ("input_0", "add"): jnp.zeros(())}
    (made,) = probed(tokens).program([X])
    np.testing.assert_array_equal(made, jnp.sin(X * 3) + X)

    def total(stored, read):
        tokens = {"mul": stored, ("input_0", "add"): read}
        return probed(tokens).program([X])[0].sum()

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
            return prober.program([X])

    program = inline(jax.make_jaxpr(run)(X))
    prober = Prober(program, (Rounding("bfloat16"), frozenset()), {}, {}, {})
    with pytest.raises(ValueError, match="do not support JVP"):
        jax.vjp(outputs, jnp.zeros(()))
    assert prober.failed is not None
    assert prober.failed.primitive == "pure_callback"


def test_errors_pass_a_stopped_gradient():
    program = inline(jax.make_jaxpr(lambda x: lax.stop_gradient(x * 3))(X))

    def total(token):
        roundings = Rounding("bfloat16"), frozenset[str]()
        prober = Prober(program, roundings, {"mul": token}, {}, {})
        return prober.program([X])[0].sum()

    assert jax.grad(total)(jnp.zeros(())) != 0
