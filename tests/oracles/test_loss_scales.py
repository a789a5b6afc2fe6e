"""Loss scales move as those of other libraries do, step by step."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

jax = pytest.importorskip("jax")

import jax.numpy as jnp
import numpy as np

from amprewrite.compat import mpx as our_mpx
from amprewrite.training.jax import DynamicLossScale
from amprewrite.training.state import RULES

STEPS = st.lists(st.sampled_from([True, True, True, False]), max_size=40)
PERIODS = st.integers(1, 5)
EXPONENTS = st.integers(0, 127)

adjusted = jax.jit(lambda state, finite: state.adjust(finite))


def ours(state, finite, adjusted=adjusted):
    """The scale and the count after each step."""
    for flag in finite:
        state = adjusted(state, flag)
        yield float(state.loss_scale), int(state.counter)


@given(STEPS, PERIODS, EXPONENTS)
@example([True] * 3, 1, 126)  # grows as far as float32 goes
def test_torch(finite, period, exponent):
    torch = pytest.importorskip("torch")
    scaler = torch.amp.GradScaler(
        "cpu", init_scale=2.0**exponent, growth_interval=period
    )
    state = DynamicLossScale(2.0**exponent, period=period, min_loss_scale=0)
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    for flag, (scale, count) in zip(finite, ours(state, finite), strict=True):
        scaler.scale(torch.ones(1))
        parameter.grad = torch.full((1,), 1.0 if flag else float("inf"))
        scaler.step(optimizer)
        scaler.update()
        found = scaler.state_dict()
        assert (found["scale"], found["_growth_tracker"]) == (scale, count)


@given(STEPS, PERIODS, EXPONENTS)
def test_flax(finite, interval, exponent):
    """It grows one finite step later than torch."""
    dynamic_scale = pytest.importorskip("flax.training.dynamic_scale")
    held = dynamic_scale.DynamicScale(
        growth_interval=interval, scale=jnp.float32(2.0**exponent)
    )
    step = jax.jit(lambda ds, x: ds.value_and_grad(lambda w: w * x)(1.0))
    tiny = RULES["flax"].minimum
    state = DynamicLossScale(2.0**exponent, period=interval + 1, min_loss_scale=tiny)
    if exponent + len(finite) // interval > 126:
        return  # a scaled loss overflows before the scale does
    for flag, (scale, count) in zip(finite, ours(state, finite), strict=True):
        held, found, _, _ = step(held, 1.0 if flag else jnp.inf)
        assert found == flag
        assert (float(held.scale), int(held.fin_steps)) == (scale, count)


@given(STEPS, PERIODS, EXPONENTS, st.sampled_from([1.0, 2.0, 8.0]), st.integers(2, 5))
@example([True] * 3, 1, 126, 1.0, 2)
def test_jmp(finite, period, exponent, minimum, factor):
    """With any factor, and its minimum, which it loses in a round trip.

    Not compiled: XLA divides by a constant with its inverse.
    """
    jmp = pytest.importorskip("jmp")
    numbers = {"period": period, "factor": factor}
    state = DynamicLossScale(2.0**exponent, min_loss_scale=minimum, **numbers)
    held = jmp.DynamicLossScale(
        jnp.float32(2.0**exponent), min_loss_scale=np.float32(minimum), **numbers
    )
    steps = ours(state, finite, type(state).adjust)
    for flag, (scale, count) in zip(finite, steps, strict=True):
        held = held.adjust(jnp.bool_(flag))
        assert (float(held.loss_scale), int(held.counter)) == (scale, count)


@given(STEPS, PERIODS, st.integers(0, 20), st.integers(2, 5))
def test_mpx(finite, period, exponent, factor):
    mpx = pytest.importorskip("mpx")
    one = jnp.ones((), jnp.float32)
    pair = [
        library.DynamicLossScaling(
            one * 2.0**exponent, one, factor=factor, period=period
        )
        for library in (mpx, our_mpx)
    ]
    for flag in finite:
        pair = [state.adjust(jnp.bool_(flag)) for state in pair]
        found = [(float(s.loss_scaling), int(s.counter)) for s in pair]
        assert found[0] == found[1]
