"""Classes derived from a model's, and instances that hold the same."""

from types import SimpleNamespace
from typing import Any

from amprewrite.frameworks.jaxpr.modules.derived import (
    RUNNER,
    class_body,
    with_class,
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


def runner_of(model: Any) -> Any:
    return getattr(model, RUNNER, None)


def derived(fields: tuple[str, ...] = ()) -> Any:
    def call(self: Any, x: float) -> float:
        return 3 * x + 0 * len(self.weight)

    return type("Model", (Model,), class_body(Model, call, runner_of, fields))


def test_only_the_call_differs() -> None:
    model = Model()
    converted = with_class(model, derived())
    assert isinstance(converted, Model)
    assert converted.weight is model.weight
    assert converted.other() == "other"
    assert (converted(2), model(2)) == (6, 4)
    assert type(converted).__call__.__doc__ == "Call it."
    assert type(converted).__module__ == Model.__module__


def test_the_plan_is_that_of_what_runs_it() -> None:
    converted = with_class(Model(), derived())
    setattr(converted, RUNNER, SimpleNamespace(plan="plan", casts=()))
    assert converted.plan == "plan"
    assert not hasattr(with_class(converted, Model), RUNNER)


def test_a_field_of_the_model_comes_first() -> None:
    assert "plan" not in class_body(Model, Model.__call__, runner_of, ("plan",))
