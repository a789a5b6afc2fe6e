"""The entries of the JAX side: functions, what was converted, what is asked of them."""

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp

from amprewrite.dispatch import planner
from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.jaxpr.convert import (
    Request,
    convert,
    converted_function_of,
    inspect,
)

X = jnp.ones((4, 4))


def matmul(a, b):
    return a @ b


def request(**options):
    return Request(planner("bf16"), **options)


def test_with_arguments_it_is_traced_at_once() -> None:
    assert convert(matmul, request(args=(X, X))).plan.lowered
    assert convert(matmul, request(args=(X,), kwargs={"b": X})).plan.lowered


def test_what_runs_a_converted_function_is_itself() -> None:
    converted = convert(matmul, request())
    assert converted_function_of(converted) is converted
    assert converted_function_of(matmul) is None


def test_inspect_gives_the_plan_without_warnings() -> None:
    assert inspect(matmul, request(args=(X, X))).lowered
    plan = inspect(jnp.exp, request(args=(X,)))  # a warning would be an error
    assert "nothing was lowered" in plan.warnings[0]
    with pytest.raises(UnsupportedError, match="args="):
        inspect(matmul, request())
