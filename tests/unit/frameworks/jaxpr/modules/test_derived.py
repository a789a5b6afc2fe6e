"""Classes derived from a model's, and instances that hold the same."""

import copy
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("jax")

from amprewrite.frameworks.jaxpr.modules.conversion import (
    RUNNER,
    class_body,
    copies,
    made_of,
    metaclass,
    plain_class,
)


class Model:
    """Doubles."""

    def __init__(self) -> None:
        self.weight = [1.0]

    def __call__(self, x: float) -> float:
        """Call it."""
        return 2 * x

    def other(self) -> str:
        return "other"


def converted_function_of(model: Any) -> Any:
    return getattr(model, RUNNER, None)


def derived(fields: tuple[str, ...] = ()) -> Any:
    def call(self: Any, x: float) -> float:
        return 3 * x + 0 * len(self.weight)

    body = class_body(Model, converted_function_of, fields)
    return metaclass(type)("Model", (Model,), body | {"__call__": call})


def test_only_the_call_differs() -> None:
    model = Model()
    converted = made_of(derived(), vars(model))
    assert isinstance(converted, Model)
    assert converted.weight is model.weight
    assert converted.other() == "other"
    assert (converted(2), model(2)) == (6, 4)
    assert type(converted).__qualname__ == Model.__qualname__
    assert "Model' converted by amprewrite" in repr(type(converted))
    assert plain_class(type(converted)) is plain_class(Model) is Model
    assert type(converted).__module__ == Model.__module__


def test_the_plan_is_that_of_what_runs_it() -> None:
    converted = made_of(derived(), vars(Model()))
    setattr(converted, RUNNER, SimpleNamespace(plan="plan", casts=()))
    assert converted.plan == "plan"
    assert not hasattr(made_of(Model, vars(converted)), RUNNER)


def test_a_field_of_the_model_comes_first() -> None:
    assert "plan" not in class_body(Model, converted_function_of, ("plan",))


def test_copies_are_made_of_the_plain_model() -> None:
    calls = []

    def convert(model, request):
        calls.append(request)
        return made_of(made, vars(model))

    conversion = SimpleNamespace(to_pickle=lambda: "request", converted=lambda m: m)
    body = copies(convert, converted_function_of, lambda m: made_of(Model, vars(m)))
    made = derived_with(body)
    converted = made_of(made, vars(Model()))
    with pytest.raises(AttributeError):
        _ = converted.amprewrite_runner
    make, given = converted.__reduce__()
    assert type(make(*given)) is Model  # it was made by a class method
    setattr(converted, RUNNER, conversion)
    make, given = converted.__reduce__()
    assert type(given[0]) is Model
    assert isinstance(make(*given), made)
    assert calls == ["request"]
    assert copy.copy(converted).weight is converted.weight
    assert copy.deepcopy(converted).weight is not converted.weight


def derived_with(body: dict[str, Any]) -> Any:
    return metaclass(type)(
        "Model", (Model,), class_body(Model, converted_function_of) | body
    )
