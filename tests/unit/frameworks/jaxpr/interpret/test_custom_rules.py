"""Custom rules see what they were written for, and are rewritten inside."""

import numpy as np
import pytest

import amprewrite

jax = pytest.importorskip("jax")

import jax.numpy as jnp

W = jnp.asarray(np.random.default_rng(0).normal(size=(8, 8)) / 3, jnp.float32)
X = jnp.asarray(np.random.default_rng(1).normal(size=(4, 8)), jnp.float32)


def test_an_identity_with_a_rule_is_not_the_value_itself() -> None:
    @jax.custom_jvp
    def damped(x):
        return x

    @damped.defjvp
    def _(primals, tangents):
        return primals[0], tangents[0] * 0.25

    def function(x):
        h = x @ W
        return (damped(h) * 3).sum() + h.sum()

    wanted = jax.grad(function)(X)
    found = jax.grad(amprewrite.convert(function))(X)
    assert jnp.linalg.norm(found - wanted) < 1e-2 * jnp.linalg.norm(wanted)


@pytest.mark.parametrize("kind", ["jvp", "vjp"])
def test_a_rule_is_called_with_the_dtypes_it_was_traced_with(kind: str) -> None:
    seen: list[str] = []

    def value(h):
        return jnp.maximum(h @ W, 0)

    if kind == "jvp":
        custom = jax.custom_jvp(value)

        @custom.defjvp
        def _(primals, tangents):
            seen.extend(str(x.dtype) for x in (*primals, *tangents))
            return value(primals[0]), tangents[0] @ W

    else:
        custom = jax.custom_vjp(value)

        def forward(h):
            seen.append(str(h.dtype))
            return value(h), h

        def backward(h, cotangent):
            seen.extend((str(h.dtype), str(cotangent.dtype)))
            return (cotangent @ W.T,)

        custom.defvjp(forward, backward)

    def function(x):
        return custom(jnp.tanh(x @ W)).sum()

    converted = amprewrite.convert(function)
    wanted, found = jax.grad(function)(X), jax.grad(converted)(X)
    text = str(jax.make_jaxpr(jax.grad(converted))(X))
    assert set(seen) == {"float32"}
    assert "bf16" in text
    assert jnp.linalg.norm(found - wanted) < 2e-2 * jnp.linalg.norm(wanted)
