"""Which methods of a class of models run by a plan, and bodies that make them.

Every method and property that the class and its bases define runs by a plan, private
ones too: they are called from outside by inherited code. Static and class methods have
no model; generators and coroutines run turn by turn. Those stay as they are written,
and what they call on the model runs by a plan.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from amprewrite.frameworks.jaxpr.function.converted_function import parameter_names

CALL = "__call__"
"""The one method that a call of the model itself runs."""

Run = Callable[[Any, str, tuple[Any, ...], Mapping[str, Any]], Any]
"""Runs a method of a model: the model, the name of the method, and its arguments."""


def overrides(
    kind: Any, base: type, run: Run, fields: Iterable[str] = ()
) -> dict[str, Any]:
    """Return the part of a class body that has the methods of ``kind`` run by ``run``.

    Args:
        kind: Class of the model.
        base: Class of all modules of the library, whose own methods stay.
        run: What a call of a method does; a property is run without arguments.
        fields: Names of the fields of the model, which are no methods.
    """
    known = set(fields)
    return {
        name: _property(name, found, run) if is_property else _method(name, found, run)
        for name, (found, is_property) in methods_of(kind, base).items()
        if name not in known
    }


def methods_of(kind: Any, base: type) -> dict[str, tuple[Any, bool]]:
    """Return the methods that run by a plan, and whether each is a property.

    Args:
        kind: Class of the model.
        base: Class of all modules of the library.
    """
    bases: tuple[type, ...] = kind.__mro__
    merged: dict[str, Any] = {}
    for owner in reversed(bases):
        if owner not in base.__mro__:
            merged.update(vars(owner))
    return {
        name: (value, isinstance(value, property))
        for name, value in merged.items()
        if _has_a_name_of_its_own(name) and _runs_on_a_model(value)
    }


def call_method(
    model: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Return what method or property ``name`` of ``model`` gives."""
    if name == CALL:
        return model(*args, **kwargs)
    found = getattr(model, name)
    return found if _is_property(type(model), name) else found(*args, **kwargs)


def as_written(
    kind: Any, model: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Return what method or property ``name`` of class ``kind`` gives on ``model``.

    Args:
        kind: Class of the model.
        model: An instance of a class derived from that, whose own method is passed by.
        name: Name of the method.
        args: Positional arguments.
        kwargs: Keyword arguments.
    """
    found: Any = inspect.getattr_static(kind, name)
    bound = found.__get__(model, type(model))
    return bound if isinstance(found, property) else bound(*args, **kwargs)


def method_parameters(kind: Any, name: str) -> tuple[str, ...]:
    """Return the names of the parameters of a method that have a position."""
    found: Any = inspect.getattr_static(kind, name, None)
    return () if isinstance(found, property) else parameter_names(found)[1:]


def _is_property(kind: Any, name: str) -> bool:
    return isinstance(inspect.getattr_static(kind, name), property)


def _has_a_name_of_its_own(name: str) -> bool:
    """Return whether ``name`` is none that Python calls on its own."""
    return name == CALL or not (name.startswith("__") and name.endswith("__"))


def _runs_on_a_model(value: Any) -> bool:
    if isinstance(value, property | functools.partialmethod):
        return True
    if isinstance(value, type | staticmethod | classmethod) or not callable(value):
        return False
    inner: Any = inspect.unwrap(value)
    turns = (
        inspect.isgeneratorfunction,
        inspect.iscoroutinefunction,
        inspect.isasyncgenfunction,
    )
    return hasattr(type(value), "__get__") and not any(test(inner) for test in turns)


def _method(name: str, found: Any, run: Run) -> Callable[..., Any]:
    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return run(self, name, args, kwargs)

    inner = found.func if isinstance(found, functools.partialmethod) else found
    functools.update_wrapper(method, inner, updated=())
    return method


def _property(name: str, found: property, run: Run) -> property:
    def getter(self: Any) -> Any:
        return run(self, name, (), {})

    return property(getter, found.fset, found.fdel, found.__doc__)
