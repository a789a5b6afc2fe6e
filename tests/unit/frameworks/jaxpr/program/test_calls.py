"""The calls of jax.nn and optax around equations, and their numbers."""

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp

import amprewrite

X = jnp.ones((4, 4))


def compounds(function, *args):
    """Return each compound of a function's plan with its number of ops."""
    found = amprewrite.inspect(function, args=args).compounds
    return [(compound.name, len(compound.ops)) for compound in found]


def layer_norm(x):
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


def test_functions_of_jax_keep_their_names():
    optax = pytest.importorskip("optax")
    labels = jnp.zeros(4, jnp.int32)

    def loss(x):
        h = jax.nn.softmax(jax.nn.gelu(layer_norm(x)) @ x)
        named = optax.losses.softmax_cross_entropy_with_integer_labels(h @ x, labels)
        return named.mean()

    names = [name for name, _ in compounds(loss, X)]
    assert names == ["layer_norm", "gelu", "softmax", "cross_entropy"]


def test_a_call_in_a_loop_is_one_call_each_turn():
    def stack(x):
        for _ in range(3):
            x = jax.nn.softmax(x)
        return jax.nn.softmax(x)

    found = compounds(stack, X)
    assert [name for name, _ in found] == ["softmax"] * 4
    assert len({ops for _, ops in found}) == 1


def test_a_jitted_function_is_a_call_each_time():
    @jax.jit
    def softmax(x):
        return jnp.exp(x) / jnp.exp(x).sum()

    found = compounds(lambda x: softmax(softmax(x) @ x), X)
    assert [name for name, _ in found] == ["softmax", "softmax"]


def test_the_backward_pass_of_a_call_is_a_call():
    def loss(x):
        return (jax.nn.softmax(x) @ x).sum()

    names = [name for name, _ in compounds(jax.grad(loss), X)]
    assert names == ["softmax", "backward of softmax"]


def test_an_op_in_a_jitted_function_has_the_line_of_the_call():
    def centred(x):
        return jax.nn.standardize(x)

    plan = amprewrite.inspect(centred, args=(X,))
    assert {d.source.partition(":")[0] for d in plan.decisions} == {"test_calls.py"}


def test_a_large_function_with_the_name_of_a_compound_is_none():
    def cross_entropy(x):
        return jnp.log(jax.nn.silu(x @ x)).sum()

    assert [name for name, _ in compounds(cross_entropy, X)] == ["silu"]
