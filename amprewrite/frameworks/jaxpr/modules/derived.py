"""Converted modules as instances of a class derived from the model's.

Fields, other methods and checks of the type go on as before; only a call differs.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any

RUNNER = "amprewrite_runner"
"""The field that holds what runs a converted module."""


def with_class(model: Any, kind: Any) -> Any:
    """Return ``model`` as another class, holding the same, without what runs it."""
    made: Any = object.__new__(kind)
    fields: dict[str, Any] = model.__dict__
    for name, value in fields.items():
        if name != RUNNER:
            object.__setattr__(made, name, value)
    return made


def class_body(
    kind: Any,
    call: Callable[..., Any],
    runner_of: Callable[[Any], Any],
    fields: Iterable[str] = (),
) -> dict[str, Any]:
    """Return the body of the class of converted modules of class ``kind``.

    Args:
        kind: Class of the model.
        call: What a call does.
        runner_of: Gives what runs a module, which has ``plan`` and ``casts``.
        fields: Names that the model has taken for itself.
    """
    body: dict[str, Any] = {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
        "__annotations__": {},
        "__call__": functools.wraps(kind.__call__)(call),
    }
    taken = set(fields)
    for name in ("plan", "casts"):
        if not hasattr(kind, name) and name not in taken:
            body[name] = property(functools.partial(_of_runner, runner_of, name))
    return body


def _of_runner(runner_of: Callable[[Any], Any], name: str, model: Any) -> Any:
    return getattr(runner_of(model), name)
