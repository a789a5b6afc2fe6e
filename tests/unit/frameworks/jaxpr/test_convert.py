"""The entries of the JAX side: functions, what was converted, what is asked of them."""

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp

from amprewrite.dispatch import planner
from amprewrite.errors import NotCapturedError, UnsupportedError
from amprewrite.frameworks.jaxpr.convert import (
    Request,
    convert,
    converted_function_of,
    inspect,
    plan_of,
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


def test_the_plan_is_found_under_transformations() -> None:
    converted = convert(matmul, request(args=(X, X)))
    assert plan_of(converted) == converted.plan
    assert plan_of(jax.jit(converted)) == converted.plan
    assert plan_of(jax.jit(jax.grad(converted))) == converted.plan


def test_the_plan_of_a_module_is_found() -> None:
    linen = pytest.importorskip("flax.linen")
    model = linen.Dense(4)
    converted = convert(model, request(args=(model.init(jax.random.key(0), X), X)))
    assert plan_of(converted).lowered


@pytest.mark.parametrize("model", [matmul, jax.jit(matmul)])
def test_a_function_that_is_not_converted_has_no_plan(model: object) -> None:
    with pytest.raises(UnsupportedError, match="want a result of amprewrite"):
        plan_of(model)


def test_there_is_no_plan_before_the_first_call() -> None:
    with pytest.raises(NotCapturedError, match="first call"):
        plan_of(jax.jit(convert(matmul, request())))
