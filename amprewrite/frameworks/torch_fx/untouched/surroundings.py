"""Variables outside of a model that its forward may write.

They are the global variables of the Python modules in which the user's classes and
functions are defined, the attributes of these classes, the variables around nested
functions, and the caches of functions with ``functools.lru_cache``. Containers and
objects among their values are looked into.
"""

import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from functools import cache, lru_cache, partial
from operator import is_
from types import CellType, FunctionType, ModuleType
from typing import Any, NamedTuple, cast

import torch
from torch import nn

from amprewrite.frameworks.torch_fx.compat.tensor_internals import has_no_values
from amprewrite.frameworks.torch_fx.untouched.contents import Content, Contents
from amprewrite.frameworks.torch_fx.untouched.kinds import (
    PLAIN,
    is_namespace,
    is_same,
    kind_of_class,
    module_of,
)
from amprewrite.user_code import INSTALLED, is_users

MOST = 2000
"""Largest number of containers and objects that are looked into.

A script may have its data set in a global variable, which no forward writes.
"""

_OTHERS = frozenset(("torch", "amprewrite", "builtins", "abc", "typing"))
"""Packages of classes of which no forward writes an attribute."""

_CACHE: Any = type(lru_cache(len))
_ABSENT = object()


class _Space(NamedTuple):
    """Names with values: global variables, attributes of a class, items of a dict.

    Attributes:
        label: Name of the variable that has them; empty for variables.
        read: Returns the names as they are now.
        before: The names as they were.
        put: Sets a name.
        remove: Removes a name.
    """

    label: str
    read: Callable[[], dict[Any, Any]]
    before: dict[Any, Any]
    put: Callable[[Any, Any], object]
    remove: Callable[[Any], object]

    @classmethod
    def of_dict(cls, label: str, items: Any) -> "_Space":
        """Return the items of a dict, read and written by the functions of its type."""
        kind: Any = OrderedDict if isinstance(items, OrderedDict) else dict
        put, remove = partial(kind.__setitem__, items), partial(kind.__delitem__, items)
        read: Callable[[], dict[Any, Any]] = partial(_items, kind, items)
        return cls(label, read, read(), put, remove)

    @classmethod
    def of_class(cls, kind: Any) -> "_Space":
        """Return the attributes of a class."""
        read: Callable[[], dict[Any, Any]] = partial(_items, dict, kind)
        return cls("", read, read(), partial(setattr, kind), partial(delattr, kind))

    def changed(self, *, stored: bool) -> list[Any]:
        """Return the names with another value; those of functions are left out.

        Args:
            stored: Whether tensors without values count, which a trace made.
        """
        now, before = self.read(), self.before
        if len(now) == len(before) and all(map(is_, now.values(), before.values())):
            return []  # as nearly always
        return [
            name
            for name in {**before, **now}
            if not (isinstance(name, str) and name.startswith("__"))
            and not is_same(now.get(name, _ABSENT), before.get(name, _ABSENT))
            and not isinstance(now.get(name), (FunctionType, ModuleType, type))
            and (stored or not _is_stored(now.get(name)))
        ]


class Surroundings:
    """The variables around some models, as they are at some time."""

    def __init__(self, models: Iterable[nn.Module]) -> None:
        """Record the variables.

        Args:
            models: The models.
        """
        self._spaces: dict[int, _Space] = {}
        self._cells: dict[int, tuple[str, CellType, Any]] = {}
        self._caches: dict[int, tuple[Any, int]] = {}
        self._contents: list[tuple[str, Content]] = []
        self._inside = Contents(most=MOST, longest=MOST)
        parts = [part for model in models for part in model.modules()]
        for function in (value for part in parts for value in vars(part).values()):
            if isinstance(function, FunctionType):
                self._add_function(function)
        for kind in {base for part in parts for base in type(part).__mro__}:
            if kind.__module__.partition(".")[0] not in _OTHERS:
                self._add_class(kind)

    def _add_class(self, kind: type[Any]) -> None:
        """Record the attributes of a class, and the variables of its module."""
        if id(kind) in self._spaces:
            return
        module = sys.modules.get(module_of(kind))
        users = module is None or _is_users(_file(module))
        if module is not None:
            self._add_variables(vars(module), users=users)
        self._add_space(id(kind), _Space.of_class(kind), users=users)

    def _add_variables(self, names: dict[str, Any], *, users: bool = True) -> None:
        key = id(cast("object", names))
        if key not in self._spaces:
            self._add_space(key, _Space.of_dict("", names), users=users)

    def _add_space(self, key: int, space: _Space, *, users: bool) -> None:
        self._spaces[key] = space
        for name, value in space.before.items():
            kind = cast("Any", type(value))
            if kind is _CACHE:
                self._caches[id(value)] = value, value.cache_info().currsize
            if users:
                self._follow(value)
            if kind not in PLAIN and (users or kind_of_class(kind)):
                self._add_contents(name, value)

    def _add_contents(self, name: str, value: Any) -> None:
        """Record what a container, or an object of a class of the user, contains."""
        kind = cast("type[Any]", type(value))
        if name.startswith("__") or not (kind_of_class(kind) or _has_users(kind)):
            return
        for content in self._inside.of(value):
            inner: Any = content.value
            if isinstance(inner, dict):
                key = id(cast("object", inner))
                self._spaces.setdefault(key, _Space.of_dict(name, inner))
            else:
                self._contents.append((name, content))

    def _follow(self, value: Any) -> None:
        """Record what the user's functions, classes and modules refer to."""
        if isinstance(value, (classmethod, staticmethod)):
            value = cast("Any", value).__func__
        elif isinstance(value, property):
            value = value.fget
        elif isinstance(value, partial):
            value = cast("Any", value).func
        if isinstance(value, _CACHE):
            value = value.__wrapped__
        if isinstance(value, FunctionType):
            self._add_function(value)
        elif isinstance(value, type):
            module = sys.modules.get(module_of(value))
            if module is not None and _is_users(_file(module)):
                self._add_class(value)
        elif isinstance(value, ModuleType) and _is_users(_file(value)):
            self._add_variables(vars(value))

    def _add_function(self, function: FunctionType) -> None:
        if not _is_users(function.__code__.co_filename):
            return
        self._add_variables(function.__globals__)
        for value in (*(function.__defaults__ or ()), function.__kwdefaults__):
            self._add_contents(function.__name__, value)
        names = function.__code__.co_freevars
        for name, cell in zip(names, function.__closure__ or (), strict=True):
            if id(cell) not in self._cells:
                value = _value(cell)
                self._cells[id(cell)] = name, cell, value
                self._add_contents(name, value)
                self._follow(value)

    def written(self) -> Iterator[str]:
        """Yield the names of variables that have other values now.

        The caches of functions are left out, because a function computes what is not in
        its cache.
        """
        for space in self._spaces.values():
            for name in space.changed(stored=False):
                yield space.label or name
        for name, cell, before in self._cells.values():
            if not is_same(_value(cell), before):
                yield name
        for name, content in self._contents:
            if content.is_changed():
                yield name

    def restore(self, *, stored: bool = True) -> None:
        """Put the values back, and clear the caches that were added to.

        Args:
            stored: Whether tensors without values that a trace stored are removed from
                names, attributes and dicts.
        """
        for space in self._spaces.values():
            for name in space.changed(stored=stored):
                if name in space.before:
                    space.put(name, space.before[name])
                else:
                    space.remove(name)
        for _, cell, before in self._cells.values():
            if not is_same(_value(cell), before):
                cell.cell_contents = before
        for _, content in self._contents:
            content.restore()
        for function, size in self._caches.values():
            if stored and function.cache_info().currsize != size:
                function.cache_clear()


def _items(kind: Any, items: Any) -> dict[Any, Any]:
    """Return the items of a dict, or the attributes of a class."""
    return dict(vars(items) if isinstance(items, type) else kind.items(items))


def _is_stored(value: object) -> bool:
    return isinstance(value, torch.Tensor) and has_no_values(value)


@cache
def _has_users(kind: type[Any]) -> bool:
    """Return whether objects of a class have attributes that the user sets."""
    module = sys.modules.get(module_of(kind))
    return module is None or _is_users(_file(module)) or is_namespace(kind)


@cache
def _is_users(file: str) -> bool:
    """Return whether a file is the user's, and not of a package that is installed."""
    return is_users(file) and not any(name in file for name in INSTALLED)


def _file(module: ModuleType) -> str:
    """Return the file of a Python module; a script and a notebook are the user's."""
    if module.__name__ == "__main__":
        return "<script>"
    return getattr(module, "__file__", None) or "<frozen>"


def _value(cell: CellType) -> Any:
    """Return the value of a variable; a mark if it is not set."""
    try:
        return cell.cell_contents
    except ValueError:
        return _ABSENT
