"""Values outside of a model that its forwards read: in classes and in global variables.

A captured program has their values. They are looked up in the namespaces of classes and
of Python modules at each call, a C function for each namespace.
"""

from collections.abc import Iterable, Iterator, Mapping
from operator import call, itemgetter
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any, NamedTuple

from torch import nn

from amprewrite.frameworks.torch_fx.plain.plain_class import program_class
from amprewrite.frameworks.torch_fx.programs.flags import (
    functions_of,
    globals_in,
    is_of_torch,
    names_in,
    names_set_in,
)

Space = Mapping[str, object]
"""Namespace of a class or of a Python module."""

_CONSTANTS = (bool, int, float, complex, str, bytes, type(None))
"""Types of values that are the same if they are equal."""


class Found(NamedTuple):
    """Names in a namespace.

    Attributes:
        label: Name of the class or module.
        space: The namespace.
        names: The names.
    """

    label: str
    space: Space
    names: tuple[str, ...]


def outside_of(parts: Iterable[nn.Module]) -> list[Found]:
    """Return the names outside of modules that their forwards may read.

    They are names in the classes of the parts, and in the globals of the functions that
    the forwards may call; not those of torch, and not those that the functions set. An
    attribute of a part with the name of a global variable beside it is not one: in a
    script ``self.y`` says nothing of ``y``.

    Args:
        parts: The modules.
    """
    spaces: dict[int, Found] = {}
    for kind in dict.fromkeys(program_class(type(part)) for part in parts):
        functions = functions_of(kind)
        kept = frozenset[str]().union(*map(names_set_in, functions))
        for label, space in _spaces(kind, functions):
            known = spaces.get(id(space))
            there = (_read_in(space, functions) - kept) & space.keys()
            read = {n for n in there if not isinstance(space[n], ModuleType)}
            read.update(() if known is None else known.names)
            spaces[id(space)] = Found(label, space, tuple(sorted(read)))
    return list(spaces.values())


def _read_in(space: Space, functions: Iterable[FunctionType]) -> frozenset[str]:
    """Return the names that functions may read in a namespace."""
    found = (
        globals_in(one) if one.__globals__ is space else names_in(one)
        for one in functions
    )
    return frozenset(("forward",)).union(*found)


def _spaces(
    kind: type[nn.Module], functions: Iterable[FunctionType]
) -> Iterator[tuple[str, Space]]:
    """Yield the namespaces of a class, of its bases, and around its functions."""
    for base in kind.__mro__:
        if base is not object and not is_of_torch(base):
            yield f"{base.__module__}.{base.__qualname__}", vars(base)
    for function in functions:
        if not is_of_torch(function):
            yield str(function.__globals__.get("__name__")), function.__globals__


_call: Any = call  # its stub takes one argument


class Outside:
    """The values under some names in namespaces, to be compared later.

    A name that is added to a class counts as a change: code may ask for it. A write to
    a list, a dict or an object there does not.
    """

    def __init__(self, found: Iterable[Found]) -> None:
        """Take the names; their values are looked up by :meth:`values`."""
        found = list(found)
        spaces = [one.space for one in found]
        self._classes = [one for one in spaces if isinstance(one, MappingProxyType)]
        read = [one for one in found if one.names]
        self._read = [one.space for one in read]
        self._getters: list[Any] = [itemgetter(*one.names) for one in read]

    def values(self) -> list[object]:
        """Return the values now, and the number of names in each class."""
        try:
            found = map(_call, self._getters, self._read)
            return [*map(len, self._classes), *found]
        except KeyError:  # a name was deleted
            return []


def outside_key(found: Iterable[Found]) -> tuple[tuple[str, str, object], ...]:
    """Return the values for a key: constants by type and value, others by identity.

    Args:
        found: The names.
    """
    return tuple(
        (one.label, name, _Value(one.space[name]))
        for one in found
        for name in one.names
        if name in one.space
    )


class _Value:
    """A value in a key, which keeps it alive."""

    def __init__(self, value: object) -> None:
        self._value = value
        constant = isinstance(value, _CONSTANTS)
        self._key = (type(value), repr(value)) if constant else id(value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Value) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)
