"""Equinox modules with unit scaling: the same leaves, and the gradients are true."""

import functools
import pickle
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
eqx = pytest.importorskip("equinox")

import amprewrite
from amprewrite.errors import UnsupportedError
from amprewrite.unit_scaling import check_gradient_validity
from amprewrite.unit_scaling.jax.modules import equinox as adapter
from amprewrite.unit_scaling.program import Settings

X = np.random.default_rng(0).standard_normal((32, 8), dtype=np.float32)


class Mlp(eqx.Module):
    norm: Any
    up: Any
    down: Any

    def __init__(self, key):
        one, two = jax.random.split(key)
        self.norm = eqx.nn.LayerNorm(16)
        self.up = eqx.nn.Linear(16, 64, key=one)
        self.down = eqx.nn.Linear(64, 16, key=two)

    def __call__(self, x):
        return self.down(jax.nn.gelu(self.up(self.norm(x))))


class Block(eqx.Module):
    attention: Any
    norm: Any
    mlp: Any

    def __init__(self, key):
        one, two = jax.random.split(key)
        self.attention = eqx.nn.MultiheadAttention(2, 16, key=one)
        self.norm, self.mlp = eqx.nn.LayerNorm(16), Mlp(two)

    def __call__(self, x):
        z = jax.vmap(self.norm)(x)
        x = x + self.attention(z, z, z)
        return x + jax.vmap(self.mlp)(x)


class Net(eqx.Module):
    first: Any
    blocks: Any

    def __init__(self, key, layers=1):
        first, *keys = jax.random.split(key, 1 + layers)
        self.first = eqx.nn.Linear(8, 16, key=first)
        self.blocks = [Block(key) for key in keys]

    def __call__(self, x):
        x = jax.vmap(self.first)(x)
        for block in self.blocks:
            x = block(x)
        return x


@functools.cache
def models():
    plain = Net(jax.random.key(0))
    return plain, amprewrite.unit_scale(plain, (X,))


def test_gradients_are_true_and_residual_additions_found():
    _, scaled = models()
    found = check_gradient_validity(scaled, (X,))
    assert min(found.values()) > 0.9999
    assert len(scaled.scales.residuals) == 2
    deep = amprewrite.unit_scale(Net(jax.random.key(0), 3), (X,))
    assert len(deep.scales.residuals) == 6


def test_it_is_a_module_of_its_class_with_unit_weights():
    plain, scaled = models()
    assert isinstance(scaled, Net)
    assert len(jax.tree.leaves(scaled)) == len(jax.tree.leaves(plain))
    assert float(scaled.first.weight.std()) == pytest.approx(1, rel=1e-5)
    assert not scaled.first.bias.any()
    assert float(plain.first.weight.std()) < 0.5
    assert eqx.filter_jit(scaled)(X).std() == pytest.approx(1, rel=0.3)


def test_it_is_trained_and_updated():
    _, scaled = models()

    @eqx.filter_jit
    @eqx.filter_grad
    def grad(model, x):
        return (model(x) ** 2).mean()

    updated = eqx.apply_updates(scaled, grad(scaled, X))
    assert type(updated) is type(scaled)
    assert not np.array_equal(updated.first.weight, scaled.first.weight)


def test_it_converts():
    _, scaled = models()
    low = amprewrite.convert(scaled, args=(X,))
    assert low.plan.lowered
    assert "scale" in {decision.canonical for decision in low.plan.decisions}
    np.testing.assert_allclose(low(X), scaled(X), atol=0.2)


def test_it_is_pickled_and_refused_a_second_time():
    _, scaled = models()
    again = pickle.loads(pickle.dumps(scaled))
    np.testing.assert_array_equal(again(X), scaled(X))
    with pytest.raises(UnsupportedError, match="Net is unit-scaled already"):
        adapter.unit_scale(scaled, (X,), {}, Settings(), init=False)


def test_weights_stay_without_init():
    layer = eqx.nn.Linear(8, 16, key=jax.random.key(0))
    found = amprewrite.unit_scale(layer, (X[0],), init=False)
    np.testing.assert_array_equal(found.weight, layer.weight)
    np.testing.assert_allclose(
        found(X[0]), (layer.weight @ X[0] + layer.bias * 8**0.5) / 8**0.5, rtol=1e-5
    )


class Table(eqx.Module):
    weight: Any
    table: Any
    scales: Any

    def __call__(self, x):
        return (x + jax.lax.stop_gradient(self.table)) @ self.weight


def test_tables_without_a_gradient_and_fields_of_the_model_stay():
    weight, table = (5 * jax.random.normal(jax.random.key(i), (8, 8)) for i in (0, 1))
    found = amprewrite.unit_scale(Table(weight, table, "mine"), (X[:8],))
    assert float(found.weight.std()) == pytest.approx(1, rel=1e-5)
    assert (found.table == table).all()
    assert found.scales == "mine"
