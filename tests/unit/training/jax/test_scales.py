"""Loss scales as pytrees: what they do to values, and what they survive."""

import copy
import io
import pickle
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp

from amprewrite.errors import LossScaleError
from amprewrite.training.jax import (
    DynamicLossScale,
    NoOpLossScale,
    StaticLossScale,
)
from amprewrite.training.state import FLOAT32_MAX

SCALES = [
    NoOpLossScale(),
    StaticLossScale(1024.0),
    DynamicLossScale(2.0**15, counter=3, period=7, factor=4, min_loss_scale=2.0),
]


def values(state):
    """Everything in a loss scale, in numbers."""
    names = getattr(state, "__dataclass_fields__", {})
    return {n: np.asarray(getattr(state, n)).tolist() for n in names}


def run(state, finite):
    seen = []
    for flag in finite:
        state = state.adjust(flag)
        seen.append((float(state.loss_scale), int(state.counter)))
    return seen


@pytest.mark.parametrize("state", SCALES, ids=lambda s: type(s).__name__)
def test_unscale_undoes_scale(state):
    tree = {"x": jnp.float32([1.5, -3.0]), "n": jnp.arange(2), "none": None, "s": "t"}
    scaled = state.scale(tree)
    assert jnp.array_equal(scaled["x"], tree["x"] * state.loss_scale)
    found = state.unscale(scaled)
    assert jnp.array_equal(found["x"], tree["x"])
    assert found["x"].dtype == jnp.float32
    assert found["n"] is tree["n"]
    assert (found["none"], found["s"]) == (None, "t")


def test_float16_values_are_scaled_in_float32():
    state = DynamicLossScale(2.0**16)
    scaled = state.scale(jnp.float16(3))
    assert (scaled, scaled.dtype) == (3 * 2.0**16, jnp.float32)
    assert state.unscale(jnp.float16(2.0**-24)) == 2.0**-40


def test_the_largest_scale_is_undone_though_its_inverse_is_flushed():
    state = StaticLossScale(2.0**127)
    unscale = jax.jit(lambda state, x: state.unscale(x))
    assert unscale(state, jnp.float32(2.0**127)) == 1


def test_a_scale_of_float16_is_kept_in_float32():
    state = DynamicLossScale(jnp.float16(2.0**15), period=1).adjust(jnp.bool_(True))
    assert (state.loss_scale, state.loss_scale.dtype) == (2.0**16, jnp.float32)


def test_the_scale_moves():
    state = DynamicLossScale(8.0, period=2, min_loss_scale=4.0, max_loss_scale=20.0)
    assert run(state, [True] * 4) == [(8, 1), (16, 0), (16, 1), (20, 0)]
    assert run(state, [True, False, False]) == [(8, 1), (4, 0), (4, 0)]


def test_growth_beyond_float32_is_left_out():
    assert run(DynamicLossScale(2.0**127, period=1), [True]) == [(2.0**127, 0)]


def test_backoff_of_its_own():
    assert run(DynamicLossScale(64.0, backoff=0.25), [False]) == [(16, 0)]
    assert run(DynamicLossScale(9.0, factor=3), [False]) == [(3, 0)]


def test_static_scales_stay():
    for state in SCALES[:2]:
        assert state.adjust(jnp.bool_(False)) is state


@pytest.mark.parametrize("state", SCALES, ids=lambda s: type(s).__name__)
def test_it_survives(state):
    want = values(state)
    leaves, structure = jax.tree.flatten(state)
    stored = io.BytesIO()
    pickle.dump(state, stored)
    stored.seek(0)
    for copied in (
        jax.tree.unflatten(structure, leaves),
        jax.tree.map(lambda leaf: leaf, state),
        jax.jit(lambda s: s)(state),
        pickle.load(stored),
        copy.deepcopy(state),
    ):
        assert type(copied) is type(state)
        assert values(copied) == want
    assert jax.tree.structure(state) == jax.tree.structure(copy.deepcopy(state))


def test_the_minimum_holds_after_a_round_trip():
    state = jax.tree.map(lambda leaf: leaf, DynamicLossScale(8.0, min_loss_scale=8.0))
    assert run(jax.jit(lambda s: s)(state), [False, False]) == [(8, 0), (8, 0)]


def test_leaves_may_be_anything():
    state = jax.tree.map(lambda _: "leaf", SCALES[2])
    assert (state.loss_scale, state.period) == ("leaf", 7)
    shapes = jax.eval_shape(lambda: SCALES[2])
    assert shapes.loss_scale.dtype == jnp.float32


def test_types_do_not_change_in_a_loop():
    state = DynamicLossScale(8.0, period=2)
    flags = jnp.array([True, True, False])
    end, seen = jax.lax.scan(
        lambda s, flag: ((t := s.adjust(flag)), t.loss_scale), state, flags
    )
    assert seen.tolist() == [8, 16, 8]
    assert end.counter == 0


def test_equinox_stores_it(tmp_path):
    eqx = pytest.importorskip("equinox")
    eqx.tree_serialise_leaves(tmp_path / "state.eqx", SCALES[2])
    found = eqx.tree_deserialise_leaves(
        tmp_path / "state.eqx", DynamicLossScale(1.0, period=7, factor=4)
    )
    assert (found.loss_scale, found.counter) == (2.0**15, 3)


def test_flax_stores_it():
    serialization = pytest.importorskip("flax.serialization")
    state = DynamicLossScale(2.0**15, counter=3)
    stored = serialization.to_bytes({"scale": state, "static": StaticLossScale(4.0)})
    like = {"scale": DynamicLossScale(1.0, period=9), "static": StaticLossScale(1.0)}
    found = serialization.from_bytes(like, stored)
    assert (found["scale"].loss_scale, found["scale"].counter) == (2.0**15, 3)
    assert found["scale"].period == 9
    assert found["static"].loss_scale == 4


@pytest.mark.slow
def test_orbax_stores_it(tmp_path):
    pytest.importorskip("orbax.checkpoint")
    import orbax.checkpoint as ocp

    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", {"scale": SCALES[2]})
        checkpointer.wait_until_finished()
        like = jax.eval_shape(
            lambda: {"scale": DynamicLossScale(1.0, period=7, factor=4)}
        )
        found = checkpointer.restore(tmp_path / "state", like)["scale"]
    assert (found.loss_scale, found.counter, found.period) == (2.0**15, 3, 7)


def test_stuck_at_the_minimum():
    state = DynamicLossScale(2.0)
    grads = {"a": jnp.ones(2), "b": jnp.ones(2)}
    state = state.adjust(jnp.bool_(False))
    state.check(grads)  # a smaller scale was left to try
    stuck = jax.jit(lambda s: s.adjust(jnp.bool_(False), 2))(state)
    with pytest.raises(
        LossScaleError, match=r"of b is not finite.*minimum, 1"
    ) as error:
        stuck.check(grads)
    assert error.value.parameter == "b"
    with pytest.raises(LossScaleError, match=r"^gradients are not finite"):
        stuck.check()
    with pytest.raises(LossScaleError, match=r"^gradients are not finite"):
        state.adjust(jnp.bool_(False)).check(grads)  # nobody said which
    stuck.adjust(jnp.bool_(True)).check()


@pytest.mark.parametrize("scale", [0.0, -1.0, np.inf, np.nan, np.ones(2)])
def test_a_scale_is_one_number_above_zero(scale):
    for kind in (StaticLossScale, DynamicLossScale):
        with pytest.raises(ValueError, match=r"LossScale: loss_scale is .*want one"):
            kind(scale)


def test_no_limit_but_that_of_float32():
    assert DynamicLossScale(8.0).max_loss_scale == FLOAT32_MAX


def test_limits_are_checked():
    with pytest.raises(ValueError, match="want growth > 1, interval >= 1"):
        DynamicLossScale(8.0, period=0, factor=1)


def test_limits_may_be_arrays_as_in_jmp():
    limits: Any = {"min_loss_scale": np.float32(2), "factor": jnp.int32(4)}
    limits |= {"period": np.int64(9), "max_loss_scale": jnp.float32(64)}
    state = DynamicLossScale(8.0, **limits)
    assert (state.min_loss_scale, state.factor) == (2, 4)
    assert (state.period, state.max_loss_scale) == (9, 64)
    found = [getattr(state, name) for name in limits]
    assert {type(number) for number in found} == {int, float}


def test_a_scale_may_be_made_inside_jit():
    made = jax.jit(lambda x: DynamicLossScale(x).adjust(x > 0))(jnp.float16(8))
    assert (made.loss_scale, made.counter) == (8, 1)
