"""The names of jmp: casts, policies, and loss scales with its defects mended."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp

import amprewrite
from amprewrite.compat import jmp

TREE = {
    "f": jnp.ones(2),
    "h": np.ones(2, np.float16),
    "i": jnp.arange(2),
    "k": jax.random.key(0),
    "s": 1.5,
}


def dtypes(tree):
    return {n: str(getattr(leaf, "dtype", None)) for n, leaf in tree.items()}


def test_casts_of_trees():
    full = dtypes(jmp.cast_to_full(TREE))
    assert (full["f"], full["h"]) == ("float32", "float32")
    half = dtypes(jmp.cast_to_half(TREE))
    assert half["f"] == half["h"] == jnp.dtype(jmp.half_dtype()).name
    for cast in (full, half):
        assert {n: cast[n] for n in "iks"} == {n: dtypes(TREE)[n] for n in "iks"}


def test_a_policy_casts():
    policy = jmp.get_policy("params=float32,compute=bfloat16,output=float16")
    assert dtypes(policy.cast_to_param(TREE))["h"] == "float32"
    assert dtypes(policy.cast_to_compute(TREE))["f"] == "bfloat16"
    assert dtypes(policy.cast_to_output(TREE))["f"] == "float16"
    again = policy.with_output_dtype(jnp.float32)
    assert str(again) == "p=f32,c=bf16,o=f32".replace("f32", "full")


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("c=f16", ("float32", "float16", "float16")),
        ("p=f16,c=bf16", ("float16", "bfloat16", "bfloat16")),
        ("params=bf16", ("bfloat16", "bfloat16", "bfloat16")),
        ("p=f32,c=f16,o=f32", ("float32", "float16", "float32")),
        ("half", ("float16",) * 3),
        ("full", ("float32",) * 3),
        ("o=float64", ("float32", "float32", "float64")),
    ],
)
def test_policies_by_string(text, want):
    policy = jmp.get_policy(text)
    found = (policy.param_dtype, policy.compute_dtype, policy.output_dtype)
    assert tuple(jnp.dtype(dtype).name for dtype in found) == want
    assert jmp.get_policy(str(policy)) == policy


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x=f16", "unknown key 'x' in 'x=f16'; want params"),
        ("c=f17", "Unknown dtype 'f17'; want half, bf16"),
        ("f8", "Unknown dtype 'f8'"),
    ],
)
def test_mistakes(text, message):
    with pytest.raises(ValueError, match=message):
        jmp.get_policy(text)


def test_a_policy_as_a_string_converts():
    policy = jmp.get_policy("params=float32,compute=float16,output=float32")
    args = (jnp.ones((8, 8)), jnp.ones((8, 8)))
    low = amprewrite.convert(jnp.matmul, str(policy), args=args)
    assert {d.precision for d in low.plan.decisions} == {"float16"}
    assert low(*args).dtype == jnp.float32


def test_the_minimum_survives_a_round_trip():
    """Of jmp 0.0.4 it does not: the next infinite step halves the scale again."""
    state = jmp.DynamicLossScale(jnp.float32(8), min_loss_scale=jnp.float32(8))
    state = jax.tree.map(lambda leaf: leaf, state).adjust(jnp.bool_(False))
    assert state.loss_scale == 8


def test_a_float16_scale_is_adjusted():
    """jmp 0.0.4 fails: its branches have two dtypes."""
    state = jmp.DynamicLossScale(jnp.float16(2.0**15)).adjust(jnp.bool_(False))
    assert state.loss_scale == 2.0**14


def test_other_names():
    assert jmp.NoOpLossScale().loss_scale == 1
    assert jmp.StaticLossScale(jnp.float32(4)).scale(jnp.float32(2)) == 8
    assert jmp.all_finite({})
    assert jmp.select_tree(jnp.bool_(True), {"a": jnp.ones(1)}, {"a": jnp.zeros(1)})
    assert isinstance(jmp.NoOpLossScale(), jmp.LossScale)


@pytest.mark.parametrize("given", [2, np.int32(2), jnp.int32(2)], ids=type)
def test_a_scale_that_is_no_float_is_warned_of(given):
    with pytest.warns(UserWarning, match="Expected floating type for loss_scale, got"):
        jmp.DynamicLossScale(given)
    with pytest.warns(UserWarning, match="for min_loss_scale, got int32"):
        jmp.DynamicLossScale(2.0, min_loss_scale=given)


def test_scales_have_the_leaves_of_jmp():
    """So that a checkpoint of jmp's states goes on."""
    state = jmp.DynamicLossScale(jnp.float32(4), period=2)
    for made in (state, state.adjust(jnp.bool_(False)), jax.jit(lambda s: s)(state)):
        assert len(jax.tree.leaves(made)) == 2
        assert jax.tree.structure(made) == jax.tree.structure(state)
    assert state.adjust(jnp.bool_(False)).loss_scale == 2
    assert not jax.tree.leaves(jmp.StaticLossScale(4.0))
    stepped = jax.jit(lambda s, finite: s.adjust(finite))(state, jnp.bool_(False))
    assert (stepped.loss_scale, stepped.counter) == (2, 0)


def test_a_static_scale_may_be_any_number():
    assert jmp.StaticLossScale(0).loss_scale == 0
    assert jmp.StaticLossScale(0).scale(jnp.ones(2)).sum() == 0
    assert jmp.StaticLossScale(4.0).unscale(jnp.ones(1)) == 0.25
    assert jmp.StaticLossScale(4.0).adjust(jnp.bool_(False)) == jmp.StaticLossScale(4.0)


def test_a_predicate_that_is_no_bool_scalar_is_an_assertion():
    for pred in (jnp.ones(2, bool), jnp.float32(1)):
        with pytest.raises(AssertionError, match="expected boolean scalar"):
            jmp.select_tree(pred, TREE, TREE)
    with pytest.raises(AssertionError, match="expected boolean scalar"):
        jmp.DynamicLossScale(2.0).adjust(jnp.ones(2, bool))
