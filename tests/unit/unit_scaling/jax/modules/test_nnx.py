"""NNX modules with unit scaling: state of their own, and the gradients are true."""

import functools
import pickle

import numpy as np
import pytest

jax = pytest.importorskip("jax")
nnx = pytest.importorskip("flax.nnx")

import amprewrite
from amprewrite.errors import UnsupportedError
from amprewrite.unit_scaling import check_gradient_validity
from amprewrite.unit_scaling.jax.modules import nnx as adapter
from amprewrite.unit_scaling.program import Settings

X = np.random.default_rng(0).standard_normal((4, 8, 16), dtype=np.float32)


class Block(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.LayerNorm(16, rngs=rngs)
        self.up, self.down = (
            nnx.Linear(*sizes, rngs=rngs) for sizes in ((16, 64), (64, 16))
        )

    def __call__(self, x):
        return x + self.down(nnx.gelu(self.up(self.norm(x))))


class Net(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(16, 16, rngs=rngs)
        self.drop = nnx.BatchNorm(16, rngs=rngs)
        self.blocks = nnx.List([Block(rngs) for _ in range(2)])

    def __call__(self, x):
        x = self.drop(self.first(x))
        for block in self.blocks:
            x = block(x)
        return x


@functools.cache
def models():
    plain = Net(nnx.Rngs(0))
    return plain, amprewrite.unit_scale(plain, (X,))


def test_gradients_are_true_and_residual_additions_found():
    _, scaled = models()
    found = check_gradient_validity(scaled, (X,))
    small = [name for name, cosine in found.items() if cosine <= 0.9999]
    assert not small
    assert len(scaled.scales.residuals) == 2


def test_it_has_unit_weights_and_a_state_of_its_own():
    plain, scaled = models()
    assert isinstance(scaled, Net)
    assert float(scaled.first.kernel[...].std()) == pytest.approx(1, rel=1e-5)
    assert float(plain.first.kernel[...].std()) < 0.5
    before = np.asarray(plain.drop.mean[...])
    assert nnx.jit(lambda m, x: m(x))(scaled, X).std() == pytest.approx(1, rel=0.4)
    np.testing.assert_array_equal(plain.drop.mean[...], before)
    assert not np.array_equal(scaled.drop.mean[...], before)


def test_it_converts():
    _, scaled = models()
    low = amprewrite.convert(scaled, args=(X,))
    assert low.plan.lowered
    assert "scale" in {decision.canonical for decision in low.plan.decisions}
    np.testing.assert_allclose(low(X), scaled(X), atol=0.3)


def test_it_is_pickled_and_refused_a_second_time():
    _, scaled = models()
    again = pickle.loads(pickle.dumps(scaled))
    np.testing.assert_allclose(again(X), scaled(X), rtol=1e-5, atol=1e-5)
    with pytest.raises(UnsupportedError, match="Net is unit-scaled already"):
        adapter.unit_scale(scaled, (X,), {}, Settings(), init=False)
