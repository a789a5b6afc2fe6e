"""Record which attributes code reads, while a model is traced."""

import inspect
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from types import FunctionType
from typing import Any, cast

import torch
from torch import nn

from amprewrite.frameworks.torch_fx.compat import dynamo_state, module_parts
from amprewrite.frameworks.torch_fx.compat.threads import capturing
from amprewrite.frameworks.torch_fx.untouched.kinds import is_users, space_of

Names = frozenset[str]
"""Names of attributes that a program read while it was traced."""

ALL = "__dict__"
"""Name that stands for all: code that reads the dict of an object may read any."""

_LOOK_UP = "__getattribute__"


@contextmanager
def recording(kinds: Iterable[type[Any]] = ()) -> Generator[set[str]]:
    """Record the names of the attributes that code reads of modules and of settings.

    The record does not say of which object: a program is captured again if an attribute
    of that name changes anywhere in the model. Meanwhile the classes have a function
    that looks attributes up, except while dynamo captures something (a branch of
    ``torch.cond``), because it refuses objects of such classes.

    Args:
        kinds: Classes of settings; ``nn.Module`` is recorded in any case.

    Yields:
        The names, :data:`ALL` among them where the user's code reads a ``__dict__``, or
        where dynamo reads attributes.
    """
    names = set[str]()
    before = {kind: vars(kind).get(_LOOK_UP) for kind in {nn.Module, *kinds}}

    def start() -> None:
        for kind, function in before.items():
            type.__setattr__(kind, _LOOK_UP, _look_up(kind, function, names))

    def stop() -> None:
        for kind, function in before.items():
            if function is None:
                type.__delattr__(kind, _LOOK_UP)
            else:
                type.__setattr__(kind, _LOOK_UP, function)

    def pause() -> None:
        names.add(ALL)
        stop()

    with capturing(), dynamo_state.around_captures(pause, start):
        start()
        try:
            yield names
        finally:
            stop()


def _look_up(kind: type[Any], before: Any, names: set[str]) -> Any:
    def look_up(value: Any, name: str) -> Any:
        if name != ALL or _is_read_by_user():
            names.add(name)
        if before is None:
            return super(kind, value).__getattribute__(name)
        return before(value, name)

    return look_up


def _is_read_by_user() -> bool:
    """Return whether code other than torch's reads the dict of an object."""
    frame = inspect.currentframe()  # of this function, below that of the look-up
    for _ in range(2):
        frame = frame and frame.f_back
    name = frame.f_globals.get("__name__", "") if frame else ""
    return str(name).partition(".")[0] not in ("torch", "amprewrite")


def is_settings(value: object) -> bool:
    """Return whether a value is an object with attributes, as a config is."""
    others = (nn.Module, torch.Tensor, FunctionType, type)
    return not issubclass(type(value), others) and space_of(value) is not None


def has_computed_names(kind: type[Any]) -> bool:
    """Return whether a class looks up attributes by code of its own, as aliases do."""
    computed = getattr(kind, "__getattr__", None) is not None
    return computed or kind.__getattribute__ is not object.__getattribute__


def kinds_of_settings(root: nn.Module) -> set[type[Any]]:
    """Return the classes of the settings of all parts whose reads can be recorded."""
    kinds, seen = set[type[Any]](), set[int]()
    below = [value for part in root.modules() for value in vars(part).values()]
    while below and len(seen) < _MOST_SETTINGS:
        value = below.pop()
        kind = cast("type[Any]", type(value))
        if id(value) in seen or not is_settings(value) or not is_users(kind):
            continue
        seen.add(id(value))
        below += module_parts.attributes_of(value).values()
        if not has_computed_names(kind):
            kinds.add(kind)
    return kinds


_MOST_SETTINGS = 1000
"""Largest number of objects among which the settings of a model are looked for."""
