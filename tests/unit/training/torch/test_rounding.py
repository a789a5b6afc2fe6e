"""Rounding to bfloat16: neighbours, exact values, means, and what is left."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from amprewrite.training.torch import low_weights

SPECIAL = [0.0, -0.0, float("inf"), float("-inf"), float("nan")]
BITS = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=32)


def from_bits(bits: list[int]):
    return torch.from_numpy(np.array(bits, dtype=np.uint32).view(np.float32).copy())


def same(one: Any, two: Any) -> bool:
    """Whether two tensors are equal bit by bit, but for which NaN it is."""
    nan = one.isnan() & two.isnan()
    bits = one.view(torch.int16) == two.view(torch.int16)
    return bool((nan | bits).all())


def draws_of(full: Any, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2**16, full.shape, generator=generator, dtype=torch.int32)


@given(BITS, st.integers(0, 2**16 - 1))
def test_the_result_is_one_of_the_two_neighbours(bits: list[int], draw: int):
    full = from_bits(bits)
    got = low_weights.stochastic(full, torch.full_like(full, draw, dtype=torch.int32))
    inner = (full.view(torch.int32) & -(1 << 16)).view(torch.float32)
    end = torch.full_like(inner, torch.inf).copysign(full).bfloat16()
    outer = torch.nextafter(inner.bfloat16(), end)
    outer = torch.where(outer.isinf() & full.isfinite(), inner.bfloat16(), outer)
    wide = got.float()
    ends = (wide == inner) | (wide == outer.float()) | (full.isnan() & got.isnan())
    assert ends.all()
    assert not (wide.isinf() & full.isfinite()).any()


@given(st.lists(st.integers(0, 2**16 - 1), min_size=1), st.integers(0, 2**16 - 1))
def test_what_bfloat16_holds_is_unchanged(bits: list[int], draw: int):
    held = from_bits([b << 16 for b in bits])
    draws = torch.full_like(held, draw, dtype=torch.int32)
    assert same(low_weights.stochastic(held, draws), held.bfloat16())
    near, left = low_weights.split(held)
    assert same(near, held.bfloat16())
    assert (left == 0).all()


@pytest.mark.parametrize("value", SPECIAL)
def test_special_values_are_kept(value: float):
    full = torch.full((64,), value)
    assert same(low_weights.stochastic(full, draws_of(full)), full.bfloat16())
    assert same(low_weights.split(full)[0], full.bfloat16())


def test_over_all_draws_the_mean_is_the_value():
    """Not a sample: each of the 2**16 draws once, so that the mean is exact."""
    draws = torch.arange(2**16, dtype=torch.int32)
    for value in (1.0 + 2.0**-9, 1.001, -3.3333, 1e-20, -1e-39, 2.0**-130 * 1.3):
        full = torch.full((2**16,), value, dtype=torch.float32)
        got = low_weights.stochastic(full, draws).double()
        assert got.mean().item() == full[0].double().item()


def test_over_random_draws_the_mean_is_the_value():
    """Within five standard errors: once in two million samples it is not."""
    full = torch.full((200_000,), 1.0013)
    got = low_weights.stochastic(full, draws_of(full)).double()
    error = got.std() / len(full) ** 0.5
    assert abs(got.mean() - full[0].double()) < 5 * error


@given(BITS)
def test_a_residual_keeps_what_is_left(bits: list[int]):
    full = from_bits(bits)
    full = full[full.isfinite() & (full.abs() < 3e38) & (full.abs() > 1e-30)].double()
    near, left = low_weights.split(full.float())
    again = low_weights.joined(near, left).double()
    assert ((again - full).abs() <= full.abs() * 2.0**-16).all()


def test_many_small_updates_add_up_as_in_float64():
    """3000 updates of 2**-13: to nearest none is kept, with a residual all are."""
    updates = torch.rand(3000, 64, generator=torch.Generator().manual_seed(0)) * 2**-12
    low = nearest = torch.ones(64, dtype=torch.bfloat16)
    left = torch.zeros(64, dtype=torch.bfloat16)
    for update in updates:
        low, left = low_weights.split(low_weights.joined(low, left) + update)
        nearest = (nearest.float() + update).bfloat16()
    exact = 1 + updates.double().sum(0)
    assert (nearest == 1).all()
    assert ((low.double() + left.double()) / exact - 1).abs().max() < 2.0**-10
    assert (low.double() / exact - 1).abs().max() < 2.0**-8
