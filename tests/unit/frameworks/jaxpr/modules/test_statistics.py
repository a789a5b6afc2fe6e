"""Which running statistics are stored wider than they are held."""

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp

from amprewrite.dtypes import Processor
from amprewrite.errors import ComplexTruncationError
from amprewrite.frameworks.jaxpr.capture.trace import Position
from amprewrite.frameworks.jaxpr.modules.states import (
    LEAST,
    any_narrow,
    is_narrow,
    stored,
    widened,
    without_narrow,
)

JAX = Processor("jax")
KEY = jax.random.key(0)
HELD = {"mean": jnp.ones(3, "bfloat16"), "n": jnp.int32(1), "key": KEY, "none": None}


def test_floats_below_float32_are_narrow() -> None:
    assert all(map(is_narrow, ("bfloat16", "float16")))
    for dtype in ("bfloat16", "float16"):
        assert jnp.promote_types(dtype, LEAST) == LEAST
    others = ("float32", "float64", "complex64", "int8", "bool", "float8_e4m3fn")
    assert not any(map(is_narrow, others))


def test_narrow_statistics_are_widened_and_others_are_not_touched() -> None:
    wide = widened(HELD, JAX)
    assert any_narrow(HELD)
    assert not any_narrow(wide)
    assert (wide["mean"].dtype, wide["n"].dtype) == ("float32", "int32")
    assert wide["key"] is KEY


def test_what_was_computed_is_stored_as_it_was_read() -> None:
    with jax.enable_x64(True):
        new = {"mean": jnp.ones(3, "float64")}
        before = {"mean": jnp.ones(3, "float32")}
        assert stored(new, before, JAX)["mean"].dtype == "float32"
    with pytest.raises(ComplexTruncationError, match="initialise it as complex64"):
        stored(jnp.ones(3, "complex64"), jnp.ones(3), JAX)


def test_positions_of_narrow_statistics_are_left_out() -> None:
    before = {
        "stats": {"mean": Position(0, "bfloat16"), "var": Position(1, "float32")},
        "cache": Position(2, "bfloat16"),
    }
    found = without_narrow(before, lambda path: path[0].key == "stats")
    assert found["stats"] == {"mean": None, "var": Position(1, "float32")}
    assert found["cache"] == Position(2, "bfloat16")
