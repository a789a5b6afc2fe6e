"""A converted function is traced and planned once, and says what it did."""

import copy
from typing import Any

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp

from amprewrite.dispatch import planner
from amprewrite.dtypes import Processor
from amprewrite.errors import AmpWarning, NotCapturedError
from amprewrite.frameworks.base import Request
from amprewrite.frameworks.jaxpr.function.converted_function import (
    ConvertedFunction,
    parameter_names,
)
from amprewrite.frameworks.jaxpr.interpret.pipeline import Inputs

X = jnp.ones((4, 4))


def matmul(a, b, *, scale=1.0):
    """Multiply."""
    return a @ b * scale


def test_it_looks_like_the_function() -> None:
    converted: Any = ConvertedFunction(matmul, Request(planner("bf16")))
    assert converted.__name__ == "matmul"
    assert converted.__doc__ == "Multiply."
    assert parameter_names(converted) == ("a", "b")
    assert parameter_names(max) == ()
    assert copy.deepcopy(converted) is converted


def test_inputs_are_named_as_the_parameters() -> None:
    converted = ConvertedFunction(matmul, Request(planner("bf16")))
    prepared, _, arrays = converted.prepare((X, X), {"scale": jnp.float32(2)})
    assert list(prepared.program.inputs) == ["a", "b", "scale"]
    assert len(arrays) == 3


def test_inputs_may_be_described() -> None:
    def describe(args, kwargs):
        assert len(args) + len(kwargs) == 2
        return Inputs(("x", "weight"), {1: "parameter"})

    converted = ConvertedFunction(matmul, Request(planner("bf16")), describe)
    converted(X, X)
    assert {c.value for c in converted.casts if c.is_weight} == {"weight"}


def test_there_is_no_plan_before_a_call_and_one_for_all_signatures_after() -> None:
    converted = ConvertedFunction(matmul, Request(planner("bf16")))
    with pytest.raises(NotCapturedError, match="call it"):
        _ = converted.plan
    converted(X, X)
    single = converted.plan
    converted(X[:2], X)
    assert "2 graphs" in converted.plan.captured
    assert len(converted.plan.decisions) == 2 * len(single.decisions)


def test_a_warning_is_given_once() -> None:
    converted = ConvertedFunction(jnp.exp, Request(planner("bf16")))
    with pytest.warns(AmpWarning, match="nothing was lowered"):
        converted(X)
    converted(X)
    silent = ConvertedFunction(jnp.exp, Request(planner("bf16")))
    silent.announces = False
    silent(X)
    assert silent.plan.warnings


def test_a_policy_that_lowers_nothing_runs_the_function_itself() -> None:
    def function(x):
        return jnp.var(x @ x, axis=0)

    x = jnp.linspace(0.0, 1.0, 16).reshape(4, 4)
    converted = ConvertedFunction(function, Request(planner("off")))
    assert (converted(x) == function(x)).all()  # calls inlined would round otherwise
    assert {d.op_class for d in converted.plan.decisions} == {"keep"}


def test_a_plan_that_changes_nothing_still_promotes_numbers() -> None:
    request = Request(planner("promote"), processor=Processor("jax"))
    converted = ConvertedFunction(lambda x: jax.lax.mul(x, 2.0), request)
    assert converted(jnp.ones(2, jnp.bfloat16)).dtype == jnp.bfloat16
    assert not converted.plan.changes
