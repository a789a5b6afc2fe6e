"""Casting values and numbers, and running a program by its plan."""

from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
from jax.extend.core import Literal

import amprewrite
from amprewrite.frameworks.jaxpr.interpret.interpreter import abs_square, cast, number


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_number_beyond_the_range_becomes_the_largest(dtype: str) -> None:
    lowest = np.finfo(np.float32).min
    found = number(lowest, dtype)
    assert found.dtype == jnp.dtype(dtype)
    assert np.isfinite(float(found))
    assert float(found) == -float(jnp.finfo(dtype).max)
    assert np.isinf(float(number(-np.inf, dtype)))
    assert np.isnan(float(number(np.nan, dtype)))
    assert float(number(0.5, dtype)) == 0.5


def test_a_saturating_cast_keeps_infinities() -> None:
    x = jnp.array([1.0, 1e6, -1e6, np.inf, -np.inf, np.nan], jnp.float32)
    found = np.asarray(cast(x, "float16", saturate=True), np.float64)
    np.testing.assert_array_equal(
        found, [1.0, 65504.0, -65504.0, np.inf, -np.inf, np.nan]
    )
    plain = np.asarray(cast(x, "float16"), np.float64)
    assert np.isinf(plain[1])


def test_gradients_of_several_uses_add_up_in_full() -> None:
    import amprewrite

    def function(x, w):
        return sum(jnp.tanh((x @ w[i]).sum()) * 0 + (x @ w[i]).sum() for i in range(64))

    x = jnp.full((1, 8), 1.0)
    w = jnp.full((64, 8, 8), 1.001)
    exact = jax.grad(function)(x, w)
    found = jax.grad(amprewrite.convert(function))(x, w)
    # One rounding of each weight; adding 64 of them up in bfloat16 would lose more.
    np.testing.assert_allclose(found, exact, rtol=2**-8)
    assert found.dtype == jnp.float32


def test_the_square_of_a_length_is_real_and_stays_complex() -> None:
    found = abs_square(jnp.array([3 + 4j, -1j, 0], jnp.complex64))
    assert found.dtype == jnp.complex64
    np.testing.assert_array_equal(found, [25, 1, 0])


def test_a_cast_of_complex_numbers_takes_the_real_part() -> None:
    found = cast(jnp.array([1 + 2j], jnp.complex64), "float16")
    assert found.dtype == jnp.float16
    assert found == 1


def test_an_output_is_as_weak_as_it_was_traced() -> None:
    def function(x, n):
        return (x + 0.3) @ n, x + 0.3, x * 1, n + 1.0, n @ n

    args = (jnp.ones((4, 4), "int8"), jnp.ones((4, 4)))
    found = amprewrite.convert(function)(*args)
    assert [x.weak_type for x in found] == [x.weak_type for x in function(*args)]
    assert found[1].weak_type
    assert (found[1] + jnp.ones((), "bfloat16")).dtype == "bfloat16"


def test_a_choice_among_numbers_keeps_its_truth_value() -> None:
    def function(x, w):
        return (x @ w) * jnp.where(np.True_, 2.0, 3.0)

    x, w = jnp.ones((2, 8)), jnp.ones((8, 8))
    np.testing.assert_allclose(amprewrite.convert(function)(x, w), 16.0)


def test_a_low_array_of_one_number_is_made_low_and_not_cast() -> None:
    def loss(w: Any, x: Any) -> Any:
        return (jax.nn.relu(x @ w) @ w).sum()

    converted = amprewrite.convert(jax.grad(loss), args=(jnp.eye(8), jnp.eye(8)))
    filled = [
        decision.op
        for decision in converted.plan.decisions
        if decision.canonical == "full" and decision.results == ("bfloat16",)
    ]
    assert filled
    eqns = jax.make_jaxpr(converted)(jnp.eye(8), jnp.eye(8)).jaxpr.eqns
    made = {v: e for e in eqns for v in e.outvars}
    casts = [e for e in eqns if e.primitive.name == "convert_element_type"]
    sources = [made[e.invars[0]] for e in casts if e.invars[0] in made]
    fillers = [e for e in sources if e.primitive.name == "broadcast_in_dim"]
    assert all(not isinstance(e.invars[0], Literal) for e in fillers)
