"""Shapes in place of arguments: planning what need not fit into memory."""

from typing import Any

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp

import amprewrite
from amprewrite.errors import UnsupportedError
from tests.jax_programs import normal, weight

W = weight(16, 16)
X = normal(4, 16)


def shape_of(array: Any) -> Any:
    return jax.ShapeDtypeStruct(array.shape, array.dtype)


def model(w: Any, x: Any, times: float = 2.0) -> Any:
    return jnp.exp(x @ w["kernel"]) * times


def test_a_function_converted_by_shapes_has_the_plan_of_its_calls() -> None:
    shapes = ({"kernel": shape_of(W)}, shape_of(X))
    converted = amprewrite.convert(model, args=shapes)
    plan = converted.plan
    assert plan.casts
    by_values = amprewrite.convert(model, args=({"kernel": W}, X))
    assert plan.decisions == by_values.plan.decisions
    assert (converted({"kernel": W}, X) == by_values({"kernel": W}, X)).all()
    assert converted.plan is plan


def test_a_plan_too_large_for_memory_is_inspected() -> None:
    wide = jax.ShapeDtypeStruct((2**20, 2**20), jnp.float32)
    plan = amprewrite.inspect(model, args=({"kernel": wide}, wide))
    assert max(cast.bytes for cast in plan.casts) >= 2**40 * 6


def test_a_module_of_shapes_is_inspected() -> None:
    nn = pytest.importorskip("flax.linen")
    layer = nn.Dense(8)
    variables = jax.eval_shape(layer.init, jax.random.key(0), X)
    plan = amprewrite.inspect(layer, args=(variables, shape_of(X)))
    assert [d.precision for d in plan.decisions if d.op_class == "allow"] == [
        "bfloat16"
    ]


def test_what_runs_the_program_wants_values() -> None:
    shapes = ({"kernel": shape_of(W)}, shape_of(X))
    wanted = r"no values for ShapeDtypeStruct\(shape=\(16, 16\).*; want arrays"
    with pytest.raises(UnsupportedError, match=f"tolerance runs the program.*{wanted}"):
        amprewrite.convert(model, args=shapes, placement="optimal", tolerance=1e-2)
    converted = amprewrite.convert(model, args=shapes)
    with pytest.raises(UnsupportedError, match=f"verify runs the program.*{wanted}"):
        amprewrite.verify(model, converted, shapes)
