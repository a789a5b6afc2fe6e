"""The methods of a model's class that run by a plan, and overrides for them.

Every method and property that the class and its bases define runs by a plan, private
ones too: inherited code calls them from outside. Static and class methods have no
model; generators and coroutines run in steps. Those run as written, and the methods
that they call on the model run by a plan.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from amprewrite.frameworks.jaxpr.function.converted_function import parameter_names

CALL = "__call__"
"""Name of the method behind a call of the model itself."""

Run = Callable[[Any, str, tuple[Any, ...], Mapping[str, Any]], Any]
"""Function that runs a method: of the model, method name and arguments."""


def overrides(
    kind: Any, base: type, run: Run, fields: Iterable[str] = ()
) -> dict[str, Any]:
    """Return the part of a class body in which methods of ``kind`` call ``run``.

    Args:
        kind: Class of the model.
        base: Base class of the library's modules; its own methods are kept.
        run: Runs a method; a property without arguments.
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
    """Return the result of method or property ``name`` of ``model``."""
    if name == CALL:
        return model(*args, **kwargs)
    found = getattr(model, name)
    return found if _is_property(type(model), name) else found(*args, **kwargs)


def as_written(
    kind: Any, model: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Return the result of ``name`` as class ``kind`` defines it, on ``model``.

    Args:
        kind: Class of the model.
        model: An instance of a derived class, with an override that is bypassed.
        name: Name of the method.
        args: Positional arguments.
        kwargs: Keyword arguments.
    """
    found: Any = inspect.getattr_static(kind, name)
    bound = found.__get__(model, type(model))
    return bound if isinstance(found, property) else bound(*args, **kwargs)


def method_parameters(kind: Any, name: str) -> tuple[str, ...]:
    """Return the names of the positional parameters of a method."""
    found: Any = inspect.getattr_static(kind, name, None)
    return () if isinstance(found, property) else parameter_names(found)[1:]


def _is_property(kind: Any, name: str) -> bool:
    return isinstance(inspect.getattr_static(kind, name), property)


def _has_a_name_of_its_own(name: str) -> bool:
    """Return whether Python never calls ``name`` implicitly."""
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
