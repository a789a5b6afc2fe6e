"""Faults that are planted in converted JAX programs are found, and named."""

from functools import cache

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
from jax import lax

import amprewrite
from amprewrite.frameworks.jaxpr.interpret.interpreter import Writer

X = jax.random.normal(jax.random.key(0), (8, 16))
W = jax.random.normal(jax.random.key(1), (16, 16)) / 4


def mlp(w, x):
    return jax.nn.gelu(x @ w) @ w


def norm(w, x):
    y = x @ w
    return (y - y.mean(-1, keepdims=True)) * lax.rsqrt(y.var(-1, keepdims=True)) @ w


def attention(w, x):
    return jax.nn.softmax((x @ w) @ x.T) @ x


def remat(w, x):
    return jax.checkpoint(lambda y: jnp.tanh(y @ w))(x) @ w


def recurrent(w, x):
    def turn(h, row):
        return jnp.tanh(h @ w + row), h.sum()

    return lax.scan(turn, jnp.zeros(16), x)


MODELS = {
    "mlp": (mlp, "dot_general_1"),
    "norm": (norm, "dot_general"),
    "attention": (attention, "exp"),
    "remat": (remat, "tanh"),
}
"""Functions, and the op that is a tenth too large."""


def verified(function):
    converted = amprewrite.convert(function, args=(W, X))
    return amprewrite.verify(function, converted, (W, X))


@cache
def sound(function):
    """Return the report on a function without a fault, which several tests need."""
    report = verified(function)
    assert report.ok, report.problems
    return report


def wrong_op(monkeypatch, name):
    """Let the op called ``name`` give 1.1 times its result."""
    run = Writer.run

    def wrong(self, steps, env):
        for step in steps:
            run(self, [step], env)
            if step.name == name and type(self) is Writer:  # no reference
                env.update({made: env[made] * 1.1 for made in step.results})

    monkeypatch.setattr(Writer, "run", wrong)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_one_op_that_is_a_tenth_too_large_fails_and_is_named(name, monkeypatch):
    function, op = MODELS[name]
    assert op in {row.op for row in sound(function).ops}
    wrong_op(monkeypatch, op)
    report = verified(function)
    assert [row.op for row in report.ops if row.is_fault] == [op]
    assert report.worst(1)[0].op == op
    assert not report.ok


@pytest.mark.slow
def test_a_wrong_op_in_a_loop_fails(monkeypatch):
    converted = amprewrite.convert(recurrent, args=(W, X))
    report = amprewrite.verify(recurrent, converted, (W, X))
    assert report.ok, report.problems
    (name,) = {d.op for d in converted.plan.decisions if d.native == "tanh"}
    wrong_op(monkeypatch, name)
    assert not verified(recurrent).ok


@pytest.mark.slow
def test_a_wrong_cast_is_named(monkeypatch):
    read = Writer.as_read
    casts = [row.op for row in sound(mlp).ops if row.inserted]
    assert casts
    reader = casts[0].split(" for ")[1]

    def wrong(self, op, index, value):
        found = read(self, op, index, value)
        return found * 1.1 if op == reader and index == 0 else found

    monkeypatch.setattr(Writer, "as_read", wrong)
    report = verified(mlp)
    first = report.worst(1)[0]
    assert (first.op, first.inserted, first.is_fault) == (casts[0], True, True)
    assert not report.ok


@pytest.mark.slow
def test_classes_that_differ_fail_and_a_plan_is_held_to_its_tolerance():
    def classes(w, x):
        y = jnp.tile(x, (40, 1)) * jnp.linspace(1, 2, 320)[:, None] @ w
        return y, jnp.argsort(y, -1)

    report = verified(classes)
    (row,) = report.discrete
    assert row.differing > row.original
    assert not report.ok
    w, x = jnp.tile(W, (16, 16)) / 16, jnp.tile(X, (16, 16))
    options = {"args": (w, x), "placement": "optimal", "tolerance": 0.02}
    converted = amprewrite.convert(mlp, **options)
    kept = amprewrite.verify(mlp, converted, (w, x))
    assert (kept.bound, kept.together, kept.ok) == (0.02, True, True)
