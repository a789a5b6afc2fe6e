"""Which attributes of a class are methods of its models, and how they are run."""

import functools

import pytest

jax = pytest.importorskip("jax")

from amprewrite.frameworks.jaxpr.modules.conversion import (
    as_written,
    call_method,
    method_parameters,
    methods_of,
    overrides,
)


class Base:
    def of_library(self):
        return 0


class Mixin:
    def mixed(self, x):
        return x


class Model(Mixin, Base):
    activation = abs
    other = Base

    def __call__(self, x, *, y=0):
        return x + y

    def _private(self):
        return 1

    def __len__(self):
        return 3

    jitted = jax.jit(lambda self: self.size, static_argnums=0)
    half = functools.partialmethod(__call__, 2)

    @property
    def size(self):
        """How large."""
        return 5

    @staticmethod
    def fixed():
        return 0

    @classmethod
    def made(cls):
        return cls()

    def turns(self):
        yield 1

    async def waits(self):
        return 1


NAMES = {"__call__", "_private", "half", "jitted", "mixed", "size"}


def test_methods_are_what_runs_on_a_model() -> None:
    found = methods_of(Model, Base)
    assert set(found) == NAMES
    assert [name for name, (_, is_property) in found.items() if is_property] == ["size"]


def test_overrides_hand_over_and_look_alike() -> None:
    calls = []

    def run(model, name, args, kwargs):
        calls.append((name, args, kwargs))
        return as_written(Model, model, name, args, kwargs)

    body = overrides(Model, Base, run, fields=("mixed",))
    assert set(body) == NAMES - {"mixed"}
    model = type("Derived", (Model,), body)()
    assert model(1, y=2) == call_method(model, "__call__", (1,), {"y": 2}) == 3
    assert model.size == call_method(model, "size", (), {}) == 5
    assert model.half() == 2
    assert [call[0] for call in calls] == [*["__call__"] * 2, *["size"] * 2, "half"]
    assert body["size"].__doc__ == "How large."
    assert body["__call__"].__name__ == "__call__"


def test_parameters_are_named_without_the_model() -> None:
    assert method_parameters(Model, "__call__") == ("x",)
    assert method_parameters(Model, "size") == ()
    assert method_parameters(Base, "__call__") == ()
