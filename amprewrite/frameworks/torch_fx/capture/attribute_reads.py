"""Record which attributes code reads, while a model is traced."""

import sys
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from functools import cache
from types import FunctionType
from typing import Any, cast

import torch
from torch import nn

from amprewrite.frameworks.torch_fx.compat import compiling, module_parts
from amprewrite.frameworks.torch_fx.compat.threads import capturing
from amprewrite.frameworks.torch_fx.untouched.kinds import is_users, space_of

Names = frozenset[str]
"""Names of attributes that a program read while it was traced."""

ALL = "__dict__"
"""Name that stands for all: code that reads the dict of an object may read any."""

_LOOK_UP = "__getattribute__"


@contextmanager
def recording(names: set[str], kinds: Iterable[type[Any]] = ()) -> Generator[None]:
    """Record the names of the attributes that code reads of modules and of settings.

    The record does not say of which object: a program is captured again if an attribute
    of that name changes anywhere in the model. Meanwhile the classes have a function
    that looks attributes up, except while dynamo captures something (a branch of
    ``torch.cond``), because it refuses objects of such classes.

    Args:
        names: Receives the names, :data:`ALL` among them where the user's code reads a
            ``__dict__``, or where dynamo reads attributes.
        kinds: Classes of settings; ``nn.Module`` is recorded in any case.
    """
    before = {kind: vars(kind).get(_LOOK_UP) for kind in {nn.Module, *kinds}}

    def start() -> None:
        for kind in before:
            type.__setattr__(kind, _LOOK_UP, _look_up(kind, before, names))

    def stop() -> None:
        for kind, function in before.items():
            if function is None:
                type.__delattr__(kind, _LOOK_UP)
            else:
                type.__setattr__(kind, _LOOK_UP, function)

    def pause() -> None:
        names.add(ALL)
        stop()

    with capturing(), compiling.around_captures(pause, start):
        start()
        try:
            yield
        finally:
            stop()


def _look_up(kind: type[Any], before: Mapping[type[Any], Any], names: set[str]) -> Any:
    """Return a function of a class that looks attributes up, and records their names.

    It is called some thousand times in a capture, and is written to be fast.
    """
    add, caller, functions = names.add, _caller, dict[type[Any], Any]()

    def next_of(cls: type[Any]) -> Any:
        """Return the function of a class that looked attributes up before."""
        after = cls.__mro__[cls.__mro__.index(kind) :]
        own = {**{base: vars(base).get(_LOOK_UP) for base in after}, **before}
        functions[cls] = next(filter(None, map(own.get, after)))
        return functions[cls]

    def look_up(value: Any, name: str) -> Any:
        if name != ALL:
            add(name)
        elif not caller(1).f_globals.get("__name__", "").startswith(_OURS):
            add(ALL)
        kind_of_value = cast("type[Any]", type(value))
        function = functions.get(kind_of_value) or next_of(kind_of_value)
        return function(value, name)

    return look_up


_caller: Any = vars(sys)["_getframe"]  # public, but for its name

_OURS = ("torch.", "amprewrite.")
"""Beginnings of the names of Python modules that read the dict of every object."""


def is_settings(value: object) -> bool:
    """Return whether a value is an object with attributes, as a config is."""
    return _is_of_settings(type(value)) and space_of(value) is not None


def _is_of_settings(kind: type[Any]) -> bool:
    return not issubclass(kind, (nn.Module, torch.Tensor, FunctionType, type))


def kinds_of_settings(root: nn.Module) -> set[type[Any]]:
    """Return the classes of the settings of all parts whose reads can be recorded."""
    of_users, settings = dict[type[Any], bool](), dict[int, Any]()
    below = [value for part in root.modules() for value in vars(part).values()]
    while below and len(settings) < _MOST_SETTINGS:
        value = below.pop()
        kind = cast("type[Any]", type(value))
        if kind not in of_users:
            of_users[kind] = is_users(kind) and _is_of_settings(kind)
        if of_users[kind] and id(value) not in settings and is_settings(value):
            settings[id(value)] = value
            below += module_parts.attributes_of(value).values()
    return set(filter(is_recorded, map(type, settings.values())))


@cache
def is_recorded(kind: type[Any]) -> bool:
    """Return whether the reads of settings of a class can be recorded.

    They cannot where the class looks attributes up by code of its own (aliases), or
    where it takes no attribute (``types.SimpleNamespace``); and classes of Python and
    of libraries of numbers are left alone.
    """
    own = getattr(kind, "__getattr__", None) is not None
    own = own or kind.__getattribute__ is not object.__getattribute__
    fixed = kind.__flags__ & _IMMUTABLE or not kind.__flags__ & _HEAP
    return is_users(kind) and not own and not fixed


_IMMUTABLE, _HEAP = 1 << 8, 1 << 9
"""Flags of types that take no attribute, and of those that are made at run time.

Source: ``Py_TPFLAGS_IMMUTABLETYPE`` and ``Py_TPFLAGS_HEAPTYPE`` of Python's C API.
"""


_MOST_SETTINGS = 1000
"""Largest number of objects among which the settings of a model are looked for."""
