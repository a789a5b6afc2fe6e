"""A conversion runs methods by plans; what is no program runs as it is written."""

import copy
import enum
from functools import partial

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp

from amprewrite.dispatch import planner
from amprewrite.errors import AmpWarning, NotCapturedError, UnsupportedError
from amprewrite.frameworks.base import Request
from amprewrite.frameworks.jaxpr.function.converted_function import ConvertedFunction
from amprewrite.frameworks.jaxpr.modules.conversion import (
    Conversion,
    RunsAsWrittenError,
    check_is_called,
    check_is_data,
)

X = jnp.ones((4, 4))


class Model:
    def __call__(self, x):
        return x @ x

    def chosen(self, x):
        return x @ x if x.sum() > 0 else x

    def moved(self, x):
        return x.T


def conversion() -> Conversion:
    def make(kind, name, shared):
        function = partial(getattr(kind, name), Model())
        return ConvertedFunction(function, shared.request, shared=shared)

    return Conversion(Model, Request(planner("bf16")), make)


def run(made, name, x=X):
    written = partial(getattr(Model, name), Model(), x)
    return made.run((Model, name), ((x,), {}), written)


def test_a_call_and_a_method_have_a_function_each_and_one_plan() -> None:
    made = conversion()
    with pytest.raises(NotCapturedError, match="Model has no plan yet"):
        _ = made.plan
    assert run(made, "__call__")[0]
    plan = made.plan
    is_planned, transposed = run(made, "moved")
    assert not is_planned
    assert (transposed == X.T).all()
    assert made.plan == plan  # the plan of what changes nothing is left out
    assert made.casts == plan.casts
    assert made.function(Model, "moved") is made.function(Model, "moved")
    assert copy.deepcopy(made) is made


def test_what_cannot_be_traced_runs_as_written_and_says_so_once() -> None:
    made = conversion()
    with pytest.warns(AmpWarning, match=r"Model.chosen is not run by a plan: cannot"):
        is_planned, found = run(made, "chosen")
    assert not is_planned
    assert (found == X @ X).all()
    assert run(made, "chosen")[0] is False
    assert made.written == {(Model, "chosen")}


def test_without_arrays_there_is_no_program() -> None:
    assert conversion().run((Model, "moved"), ((), {}), lambda: 5) == (False, 5)


def test_data_is_what_a_program_gives() -> None:
    kind = enum.Enum("kind", "A")
    check_is_data({"a": X, "b": [1, "c", None, kind.A, jnp.float32]})
    with pytest.raises(RunsAsWrittenError, match="gives back a function") as found:
        check_is_data([lambda: 0])
    assert not found.value.is_known
    with pytest.raises(RunsAsWrittenError, match="object") as found:
        check_is_data(object())
    assert found.value.is_known
    check_is_data(object(), object)


def test_arguments_of_a_call_need_a_call() -> None:
    check_is_called(Model)
    with pytest.raises(UnsupportedError, match="object has no __call__"):
        check_is_called(object)
