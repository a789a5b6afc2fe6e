"""The names of jmp and mpx are all there, and do what those do where they are right."""

import types
import warnings

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp

from amprewrite.compat import jmp as our_jmp
from amprewrite.compat import mpx as our_mpx
from tests.jax_programs import normal, relative_error, weight

TREE = {"f": jnp.ones(2), "h": jnp.ones(2, jnp.float16), "i": jnp.arange(2), "n": 1.5}


def public(module):
    return {
        name
        for name in dir(module)
        if not name.startswith("_")
        and not isinstance(getattr(module, name), types.ModuleType)
    }


@pytest.mark.parametrize(("name", "ours"), [("jmp", our_jmp), ("mpx", our_mpx)])
def test_every_public_name_is_there(name, ours):
    peer = pytest.importorskip(name)
    names = public(peer) | set(peer.__all__)
    assert not {n for n in names if not hasattr(ours, n)}


@pytest.mark.parametrize(
    "text", ["c=f16", "p=f16,c=bf16", "half", "full", "params=f32,compute=f16,o=f32"]
)
def test_policies_of_jmp(text):
    jmp = pytest.importorskip("jmp")
    pair = [library.get_policy(text) for library in (jmp, our_jmp)]
    for field in ("param_dtype", "compute_dtype", "output_dtype"):
        assert getattr(pair[0], field) == getattr(pair[1], field)
    assert str(pair[0]) == str(pair[1])
    same(*(policy.cast_to_compute(TREE) for policy in pair))


@pytest.mark.parametrize("cast", ["cast_to_full", "cast_to_half"])
def test_casts_of_jmp(cast):
    jmp = pytest.importorskip("jmp")
    same(getattr(jmp, cast)(TREE), getattr(our_jmp, cast)(TREE))


@pytest.mark.parametrize(
    "cast",
    ["float32", "float16", "bfloat16", "full_precision", "half_precision"],
)
def test_casts_of_mpx(cast):
    mpx = pytest.importorskip("mpx")
    pair = [getattr(library, f"cast_to_{cast}") for library in (mpx, our_mpx)]
    same(*(run(TREE) for run in pair))


def same(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert np.asarray(a).dtype == np.asarray(b).dtype
        assert np.array_equal(a, b)


def test_gradients_of_mpx():
    """Both near float32's, and alike in what they give back."""
    mpx = pytest.importorskip("mpx")
    model = {"w": weight(8, 16), "v": weight(16, 4, 2), "act": jnp.tanh}
    x, y = normal(16, 8), normal(16, 4, seed=1)

    def loss(model, x, y):
        made = model["act"](x @ model["w"]) @ model["v"] - y
        return jnp.mean(made.astype(jnp.float32) ** 2)

    wanted = jax.grad(lambda w: loss({**model, "w": w}, x, y))(model["w"])
    errors = []
    for library in (mpx, our_mpx):
        state = library.DynamicLossScaling(jnp.float32(256), jnp.ones(()))
        run = library.filter_value_and_grad(loss, state)
        value, state, finite, grads = run(model, x, y)
        assert jax.tree.structure(grads) == jax.tree.structure(
            {"w": 0, "v": 0, "act": None}
        )
        assert (value.dtype, grads["w"].dtype) == (jnp.float32, jnp.float32)
        assert (bool(finite), int(state.counter)) == (True, 1)
        errors.append(relative_error(grads["w"], wanted))
    assert errors[1] < 5e-3
    assert errors[1] <= 1.2 * errors[0]


def test_mpx_still_halves_gradients_at_growth():
    """What the docs say of it; ours do not."""
    mpx = pytest.importorskip("mpx")
    x = normal(16, 8)
    found = []
    for library in (mpx, our_mpx):
        state = library.DynamicLossScaling(jnp.float32(256), jnp.ones(()), period=1)
        run = library.filter_grad(
            lambda w, x: jnp.mean((x @ w).astype(jnp.float32)), state
        )
        found.append(run(weight(8, 4), x)[2])
    assert relative_error(found[0] * 2, found[1]) < 1e-2


@pytest.mark.parametrize("given", [2, 2.0, np.float32(4), jnp.int32(2)], ids=type)
def test_loss_scales_of_jmp(given):
    jmp = pytest.importorskip("jmp")
    found = []
    for library in (jmp, our_jmp):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            state = library.DynamicLossScale(given)
        said = [str(w.message) for w in caught]
        static = library.StaticLossScale(given)
        leaves = [len(jax.tree.leaves(s)) for s in (state, static)]
        found.append((said, leaves, float(static.loss_scale)))
    assert found[0] == found[1]
