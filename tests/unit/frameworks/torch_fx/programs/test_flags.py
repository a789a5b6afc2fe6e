"""The names that a module's forward reads: its flags are among them."""

import functools
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from amprewrite.frameworks.torch_fx.programs.flags import (
    flags_of,
    has_computed_names,
    settings_read,
)


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(self: Any, *args: Any) -> Any:
        return function(self, *args) if self.in_wrapper else None

    return wrapper


def unwrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate without a trace in ``__wrapped__``."""
    return lambda *args: (function(*args),)


class Mixin:
    def mixed(self: Any) -> Any:
        return self.in_mixin


class Base(nn.Module):
    def helper(self) -> Any:
        return self.in_helper_of_base

    def forward(self, x: Any) -> Any:
        return x if self.in_forward_of_base else self.helper()


class Model(Base, Mixin):
    @property
    def gain(self) -> Any:
        return self.in_property

    @staticmethod
    def free(model: Any) -> Any:
        return model.in_staticmethod

    @classmethod
    def shared(cls: Any) -> Any:
        return cls.in_classmethod

    @decorated
    @unwrapped
    def both(self) -> Any:
        return self.in_decorated

    def nested(self: Any) -> Any:
        return [y.in_nested for y in map(lambda z: z.in_lambda, self.parts)]  # noqa: C417

    def unread(self) -> Any:
        return self.in_unread

    def deeper(self) -> Any:
        return self.in_deeper

    def called(self) -> Any:
        return self.deeper()

    def forward(self, x: Any) -> Any:
        """Name in_docstring and others."""
        self.in_stored = x
        x = self.gain, self.free(self), self.shared(), self.both(), self.nested()
        x = super().forward(x), self.called(), self.mixed()
        return getattr(self, "in_string", None), x


@pytest.mark.parametrize(
    "name",
    [
        *("property", "staticmethod", "classmethod", "wrapper", "decorated", "nested"),
        *("lambda", "deeper", "string", "stored", "mixin"),
        *("forward_of_base", "helper_of_base"),
    ],
)
def test_names_are_found(name: str) -> None:
    assert f"in_{name}" in flags_of(Model)


@pytest.mark.parametrize("name", ["in_unread", "in_docstring", "epoch"])
def test_names_that_no_code_of_the_forward_has_are_not(name: str) -> None:
    assert name not in flags_of(Model)


def test_code_of_torch_itself_is_not_read() -> None:
    assert "_parameters" not in flags_of(Model)
    assert flags_of(nn.Module) == frozenset()
    assert {"weight", "bias"} < flags_of(nn.Linear)


def test_methods_that_call_each_other_end() -> None:
    class Loops(nn.Module):
        def one(self) -> Any:
            return self.two() if self.in_one else 0

        def two(self) -> Any:
            return self.one() if self.in_two else 0

        def forward(self) -> Any:
            return self.one()

    assert {"in_one", "in_two"} < flags_of(Loops)


def test_a_closure_with_a_variable_that_is_not_set_is_read() -> None:
    def make() -> Any:
        class Late(nn.Module):
            def forward(self) -> Any:
                return unset(self.in_forward)

        found = flags_of(Late)
        unset: Any = len
        return found, unset

    assert "in_forward" in make()[0]


def test_functions_and_cached_properties_are_read() -> None:
    class Cached(nn.Module):
        @functools.cached_property
        def gain(self) -> Any:
            return self.in_cached

        @functools.lru_cache  # noqa: B019  # as users write it
        def known(self) -> Any:
            return self.in_lru

        def forward(self) -> Any:
            return self.gain, self.known(), outside(self)

    assert {"in_cached", "in_lru", "in_outside"} <= flags_of(Cached)


def outside(module: Any) -> Any:
    return module.in_outside


class Settings:
    in_method_of_a_property: Any

    @property
    def kind(self) -> Any:
        return self.inside()

    def inside(self) -> Any:
        return self.in_method_of_a_property


class Aliased:
    def __getattr__(self, name: str) -> Any:
        return name


def test_settings_are_read_through_their_properties_and_methods() -> None:
    names = settings_read(Settings, frozenset({"kind", "other"}))
    assert names >= {"kind", "other", "inside", "in_method_of_a_property"}
    assert "inside" not in settings_read(Settings, frozenset({"other"}))


def test_names_are_computed_where_a_class_looks_them_up_itself() -> None:
    assert has_computed_names(Aliased)
    assert not has_computed_names(Settings)
