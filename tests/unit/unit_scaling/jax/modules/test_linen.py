"""Linen modules with unit scaling: init of unit scale, and apply with factors."""

import functools
import pickle
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
nn = pytest.importorskip("flax.linen")

import amprewrite
from amprewrite.errors import UnsupportedError
from amprewrite.unit_scaling import check_gradient_validity
from amprewrite.unit_scaling.jax.modules import linen as adapter
from amprewrite.unit_scaling.program import Settings

X = np.random.default_rng(0).standard_normal((4, 8, 16), dtype=np.float32)


class Block(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = x + nn.MultiHeadDotProductAttention(2)(nn.LayerNorm()(x))
        z = nn.gelu(nn.Dense(64)(nn.RMSNorm()(x)))
        return x + nn.Dense(16)(z)


class Net(nn.Module):
    layers: int = 1

    @nn.compact
    def __call__(self, x):
        x = nn.Dense(16)(x)
        for _ in range(self.layers):
            x = Block()(x)
        return x


@functools.cache
def models():
    plain = Net()
    variables = plain.init(jax.random.key(0), X)
    return plain, amprewrite.unit_scale(plain, (variables, X))


@functools.cache
def variables():
    return models()[1].init(jax.random.key(0), X)


def test_gradients_are_true_and_residual_additions_found():
    _, scaled = models()
    found = check_gradient_validity(scaled.apply, (variables(), X))
    small = [name for name, cosine in found.items() if cosine <= 0.9999]
    assert not small
    assert len(scaled.scales.residuals) == 2


def test_it_is_a_module_of_its_class_and_init_is_of_unit_scale():
    plain, scaled = models()
    assert isinstance(scaled, Net)
    found = jax.tree_util.tree_leaves_with_path(variables())
    stds = {jax.tree_util.keystr(path): float(x.std()) for path, x in found}
    kernels = [std for name, std in stds.items() if "kernel" in name]
    assert kernels == pytest.approx([1] * len(kernels), rel=1e-4)
    assert not any(std for name, std in stds.items() if "bias" in name)
    wanted = jax.tree.structure(plain.init(jax.random.key(0), X))
    assert jax.tree.structure(variables()) == wanted
    y = jax.jit(scaled.apply)(variables(), X)
    assert y.std() == pytest.approx(1, rel=0.3)


def test_clones_and_pickles_are_scaled():
    _, scaled = models()
    again = pickle.loads(pickle.dumps(scaled))
    wanted = scaled.apply(variables(), X)
    np.testing.assert_array_equal(again.apply(variables(), X), wanted)
    deep = scaled.clone(layers=3)
    jax.eval_shape(lambda: deep.apply(deep.init(jax.random.key(0), X), X))
    assert len(deep.scales.residuals) == 6


def test_it_converts():
    _, scaled = models()
    low = amprewrite.convert(scaled, args=(variables(), X))
    assert low.plan.lowered
    assert "scale" in {decision.canonical for decision in low.plan.decisions}
    wanted = scaled.apply(variables(), X)
    np.testing.assert_allclose(low.apply(variables(), X), wanted, atol=0.2)


def test_it_is_refused_a_second_time_and_inside_of_another():
    _, scaled = models()
    with pytest.raises(UnsupportedError, match="Net is unit-scaled already"):
        adapter.unit_scale(scaled, (variables(), X), {}, Settings(), init=False)

    class Outer(nn.Module):
        inner: Any

        @nn.compact
        def __call__(self, x):
            return self.inner(x)

    with pytest.raises(UnsupportedError, match="scale the outermost module"):
        Outer(scaled).init(jax.random.key(0), X)


def test_it_is_refused_where_its_apply_is_not_called():
    _, scaled = models()
    for call in (
        lambda: scaled.bind(variables())(X),
        lambda: scaled.init_with_output(jax.random.key(0), X),
        lambda: nn.apply(lambda module, x: module(x), scaled)(variables(), X),
    ):
        with pytest.raises(UnsupportedError, match="is bound to variables, and would"):
            call()
