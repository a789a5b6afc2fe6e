"""Calls of a JAX function are shown before they run, but not where they are traced."""

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp

from amprewrite.frameworks.jaxpr.watching import attach


class Every:
    """Watcher of each call that counts what it is told."""

    def __init__(self):
        self.calls = []

    def due(self):
        return len(self.calls) + 1

    def compare(self, number, args, kwargs):
        self.calls.append((number, args, kwargs))
        return lambda: None


def test_calls_are_shown_unless_they_are_traced():
    watcher = Every()
    attached = attach(lambda x, scale=1: x * scale, watcher)
    assert attached.call(jnp.ones(()), scale=3) == 3
    assert jax.jit(attached.call)(jnp.ones(())) == 1
    assert watcher.calls == [(1, (1.0,), {"scale": 3})]


def test_a_module_of_linen_is_called_by_apply():
    nn = pytest.importorskip("flax.linen")
    watcher, x = Every(), jnp.ones((1, 2))
    module = nn.Dense(2)
    variables = module.init(jax.random.key(0), x)
    found = attach(module, watcher).call(variables, x)
    assert (found == module.apply(variables, x)).all()
    assert len(watcher.calls) == 1
