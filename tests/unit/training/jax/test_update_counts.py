"""Lost updates of optax against distances of NumPy."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")

import jax.numpy as jnp

from amprewrite.errors import ArgumentError
from amprewrite.training.jax import lost_updates

RNG = np.random.default_rng(0)


def test_counts_of_optax_are_those_of_the_distances():
    weights = (1 + RNG.integers(1, 128, 400) / 128) * 2.0 ** RNG.integers(-2, 6, 400)
    params = {
        "layer": {"w": jnp.asarray(weights, "bfloat16")},
        "steps": jnp.zeros((), int),
    }
    gradients = jax.tree.map(
        lambda x: jnp.asarray(RNG.standard_normal(x.shape), "float32"), params
    )
    optimizer = optax.chain(optax.scale_by_adam(), optax.scale(-1e-2))
    updates, _ = optimizer.update(gradients, optimizer.init(gradients), params)
    found = lost_updates(params, updates)
    assert list(found.parameters) == ["layer.w"]
    moved = np.abs(np.asarray(updates["layer"]["w"], np.float64))
    spacing = 2.0 ** (np.floor(np.log2(weights)) - 7)
    lost = int(np.sum(moved < spacing / 2))
    assert 100 < lost < 350
    assert found.parameters["layer.w"].lost == lost
    held = params["layer"]["w"]
    applied = optax.apply_updates(held, updates["layer"]["w"])
    assert int(jnp.sum(applied == held)) == lost
    assert not lost_updates(params, updates, "float32").share


def test_mistakes_are_said():
    params = {"w": jnp.ones(3)}
    with pytest.raises(ArgumentError, match="another tree than params"):
        lost_updates(params, [jnp.ones(3)])
    with pytest.raises(ArgumentError, match=r"w has the shape \(3,\), its"):
        lost_updates(params, {"w": jnp.ones(2)})
    with pytest.raises(ArgumentError, match="w is traced; want arrays"):
        jax.jit(lambda p: lost_updates(p, p))(params)
    assert not lost_updates(params, {"w": None}).parameters
