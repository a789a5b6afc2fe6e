"""What ``jax.checkpoint`` saves of a converted program: the values of before."""

import math
from collections import Counter

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

import amprewrite
from tests.jax_programs import (
    checked_jaxpr,
    equations,
    normal,
    relative_error,
    weight,
)

SHIPPED = jax.checkpoint_policies
AWAY = {"offload_src": "device", "offload_dst": "pinned_host"}

ALL = {
    "everything": SHIPPED.everything_saveable,
    "all but names": SHIPPED.save_anything_except_these_names("first"),
}
"""Policies that save casts too, which a program has only after the conversion."""

POLICIES = {
    "none": None,
    "nothing": SHIPPED.nothing_saveable,
    "dots": SHIPPED.dots_saveable,
    "checkpoint_dots": SHIPPED.checkpoint_dots,
    "unbatched dots": SHIPPED.dots_with_no_batch_dims_saveable,
    "other names": SHIPPED.save_any_names_but_these("first"),
    "these names": SHIPPED.save_only_these_names("first"),
    "either": SHIPPED.save_from_both_policies(
        SHIPPED.dots_with_no_batch_dims_saveable,
        SHIPPED.save_only_these_names("second"),
    ),
    "dots elsewhere": SHIPPED.offload_dot_with_no_batch_dims("device", "pinned_host"),
    "names elsewhere": SHIPPED.save_and_offload_only_these_names(
        names_which_can_be_saved=["first"],
        names_which_can_be_offloaded=["second"],
        **AWAY,
    ),
    "own": lambda primitive, *avals, **_: (
        primitive.name == "dot_general" and avals[0].shape[-1] == 16
    ),
}

LOW = "bfloat16"
X = normal(8, 16)
W = jnp.stack([weight(16, 16, seed) for seed in range(4)])


def mlp(policy):
    def body(w, x):
        x = checkpoint_name(jnp.tanh(x @ w[0]), "first")
        return checkpoint_name(jnp.tanh(x @ w[1]), "second") @ w[2]

    return jax.checkpoint(body, policy=policy)


def attention(policy):
    def body(w, x):
        q, k, v = (jnp.reshape(x @ w[i], (2, 4, 16)) for i in range(3))
        scores = jnp.einsum("bnd,bmd->bnm", q, k)
        scores = checkpoint_name(jax.nn.softmax(scores / 4), "first")
        mixed = jnp.einsum("bnm,bmd->bnd", scores, v)
        mixed = checkpoint_name(mixed.reshape(8, 16), "second")
        return x + mixed @ w[3]

    return jax.checkpoint(body, policy=policy)


def scanned(policy):
    def body(x, w):
        return checkpoint_name(jnp.tanh(x @ w), "first") @ w, None

    turn = jax.checkpoint(body, policy=policy)
    return lambda w, x: lax.scan(turn, x, w)[0]


def nested(policy):
    def inner(w, x):
        return jnp.tanh(x @ w[0]) @ w[1]

    def body(w, x):
        held = jax.checkpoint(inner, policy=policy)(w, x)
        return checkpoint_name(jnp.sin(held), "second") @ w[2]

    return jax.checkpoint(body, policy=policy)


def own_rule(policy):
    """A contraction in a rule of the user, and one without a gradient."""

    @jax.custom_vjp
    def layer(x, w):
        return jnp.tanh(x @ w)

    def forward(x, w):
        out = jnp.tanh(x @ w)
        return out, (x, w, out)

    def backward(kept, ct):
        x, w, out = kept
        ct = ct * (1 - out * out)
        return ct @ w.T, x.T @ ct

    layer.defvjp(forward, backward)

    def body(w, x):
        gate = lax.stop_gradient(x @ w[2])
        return layer(x, w[0]) * jnp.tanh(gate) @ w[1]

    return jax.checkpoint(body, policy=policy)


PROGRAMS = {f.__name__: f for f in (mlp, attention, scanned, nested, own_rule)}


def saved(function):
    """Shape, memory and dtype of what waits for the backward pass."""
    closed = jax.make_jaxpr(lambda *args: jax.vjp(function, *args)[1])(W, X)
    avals = [v.aval for v in closed.jaxpr.outvars]
    return [(a.shape, str(a.memory_space), str(a.dtype)) for a in avals]


def without_dtypes(found):
    return Counter((shape, memory) for shape, memory, _ in found)


def products(function):
    """How many contractions the gradient computes."""
    closed = checked_jaxpr(jax.grad(lambda w, x: function(w, x).sum()), W, X)
    return sum(eqn.primitive.name == "dot_general" for eqn in equations(closed))


def bytes_of(found):
    return sum(math.prod(s) * jnp.dtype(dtype).itemsize for s, _, dtype in found)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_policy_saves_the_values_that_it_saved_before(program, name):
    plain = PROGRAMS[program](POLICIES[name])
    converted = amprewrite.convert(plain, args=(W, X))
    before, after = saved(plain), saved(converted)
    assert without_dtypes(after) == without_dtypes(before)
    assert bytes_of(after) <= bytes_of(before)
    assert products(converted) == products(plain)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_policy_that_saves_all_lets_nothing_be_computed_again(program, name):
    plain = PROGRAMS[program](ALL[name])
    converted = amprewrite.convert(plain, args=(W, X))
    assert bytes_of(saved(converted)) <= bytes_of(saved(plain))
    assert products(converted) == products(plain)


def test_contractions_are_saved_low_where_they_are_low():
    def saved_dots(program):
        converted = amprewrite.convert(program(SHIPPED.dots_saveable), args=(W, X))
        return Counter(saved(converted)) - Counter(saved(program(None)))

    assert {dtype for *_, dtype in saved_dots(mlp)} == {LOW}
    kinds = {shape: dtype for shape, _, dtype in saved_dots(attention)}
    assert kinds == {(8, 16): LOW, (2, 4, 16): LOW, (2, 4, 4): "float32"}


@pytest.mark.parametrize("name", ["dots", "unbatched dots", "dots elsewhere", "own"])
def test_a_converted_function_can_be_checkpointed(name):
    """The policy is then not part of what was converted."""

    def plain(w, x):
        return attention(None).__wrapped__(w, x)

    converted = amprewrite.convert(plain, args=(W, X))
    before, after = (
        jax.checkpoint(f, policy=POLICIES[name]) for f in (plain, converted)
    )
    assert without_dtypes(saved(after)) == without_dtypes(saved(before))
    assert products(after) == products(before)


@pytest.mark.parametrize("name", ["dots", "unbatched dots", "these names", "own"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_gradients_are_those_of_the_program(program, name):
    plain = PROGRAMS[program](POLICIES[name])
    converted = amprewrite.convert(plain, args=(W, X))

    def gradient(f):
        return jax.jit(jax.grad(lambda w, x: (f(w, x) ** 2).mean(), (0, 1)))

    assert relative_error(gradient(converted)(W, X), gradient(plain)(W, X)) < 2e-2


def test_dots_are_saved_under_vmap():
    def rows(function):
        return lambda w, x: jax.vmap(function, (None, 0))(w, x[:, None])

    plain = mlp(SHIPPED.dots_saveable)
    converted = amprewrite.convert(plain, args=(W, X[:1]))
    before, after = saved(rows(plain)), saved(rows(converted))
    assert without_dtypes(after) == without_dtypes(before)
    assert products(rows(converted)) == products(rows(plain))
