"""Kinds of values with contents, each with the functions of its type.

So no code of the user's objects runs, also where a class has methods such as
``__len__`` or ``__eq__`` that raise.
"""

import sys
from collections import OrderedDict, deque
from collections.abc import Callable
from types import FunctionType, MemberDescriptorType, ModuleType
from typing import Any, NamedTuple, cast

import torch

from amprewrite.user_code import LIBRARIES

NUMBERS = (int, float, complex, str, bytes, torch.dtype, torch.device)
"""Types of values that are the same if they are equal."""

PLAIN = frozenset((*NUMBERS, bool, type(None), type, FunctionType, ModuleType))
"""Types of values without contents."""

Values = list[Any]
"""The contents of a value, one after the other."""


def is_same(value: Any, before: Any) -> bool:
    """Return whether two values are one object, or equal numbers of one type."""
    if value is before:
        return True
    kind = cast("type[Any]", type(value))
    if kind is not type(before) or kind not in NUMBERS:
        return False
    both_nan = value != value and before != before  # noqa: PLR0124  # as NaN alone is
    return both_nan or value == before


class Kind(NamedTuple):
    """A type of values with contents.

    Attributes:
        type: The type; its subclasses are read and written as it is.
        read: Returns the contents.
        write: Replaces the contents; None if they are fixed.
    """

    type: Any
    read: Callable[[Any], Values]
    write: Callable[[Any, Values], object] | None


_dict: Any = dict  # their stubs do not know the types of the contents
_ordered: Any = OrderedDict


def _dict_kind(base: Any) -> "Kind":
    """Return the kind of dicts of a class: one with an order of its own has its own."""

    def read(value: Any) -> Values:
        return [part for pair in base.items(value) for part in pair]

    def write(value: Any, contents: Values) -> None:
        base.clear(value)
        for key, item in zip(contents[::2], contents[1::2], strict=True):
            base.__setitem__(value, key, item)

    return Kind(base, read, write)


def _kind(base: Any, add: str) -> Kind:
    """Return the kind of containers of a class, by the method that fills them."""

    def write(value: Any, contents: Values) -> None:
        base.clear(value)
        getattr(base, add)(value, contents)

    return Kind(base, _iterated(base), write)


def _iterated(base: Any) -> Callable[[Any], Values]:
    return lambda value: list(base.__iter__(value))


DICT = _dict_kind(_dict)

KINDS = (
    _dict_kind(_ordered),
    DICT,
    _kind(list, "extend"),
    Kind(tuple, _iterated(tuple), None),
    _kind(set, "update"),
    _kind(deque, "extend"),
)
"""The types of containers."""


_EXACT: dict[Any, Kind | None] = {
    **dict.fromkeys(PLAIN),
    **{kind.type: kind for kind in KINDS},
}


def kind_of(value: object) -> Kind | None:
    """Return the type of a container; None of any other value."""
    return kind_of_class(type(value))


def kind_of_class(cls: type[Any]) -> Kind | None:
    """Return the kind of container that a class is; None of other classes."""
    if cls in _EXACT:
        return _EXACT[cls]
    return next((kind for kind in KINDS if issubclass(cls, kind.type)), None)


def inside(value: object) -> Values:
    """Return the contents of a container: of a dict keys and values, in turn.

    There are none in a value of another type.
    """
    kind = kind_of(value)
    return [] if kind is None else kind.read(value)


def module_of(kind: type[Any]) -> str:
    """Return the name of the module of a class, without asking its metaclass."""
    name = type.__getattribute__(kind, "__module__")
    return name if isinstance(name, str) else ""


_OTHERS = frozenset((*LIBRARIES, "builtins", "numpy", *sys.stdlib_module_names))
"""Packages of classes: their objects are not looked into."""


_NAMESPACES = frozenset(("types.SimpleNamespace", "argparse.Namespace"))
"""Classes of Python whose objects have the attributes that their users set."""


def is_users(kind: type[Any]) -> bool:
    """Return whether a class is the user's, or of a library of models.

    A namespace counts too, because its attributes are the user's.
    """
    name = module_of(kind).partition(".")[0]
    if name == "__main__" or is_namespace(kind):
        return True
    return bool(name) and name not in _OTHERS


def is_namespace(kind: type[Any]) -> bool:
    """Return whether objects of a class have just the attributes that are set."""
    return f"{module_of(kind)}.{kind.__qualname__}" in _NAMESPACES


_Slot = MemberDescriptorType


def slots_of(kind: type[Any]) -> Kind:
    """Return a class as a kind of values that contain their slots."""
    spaces = (type.__getattribute__(base, "__dict__") for base in kind.__mro__)
    slots = [slot for space in spaces for slot in space.values() if type(slot) is _Slot]

    def read(value: Any) -> Values:
        return [_in_slot(slot, value) for slot in slots]

    def write(value: Any, contents: Values) -> None:
        for slot, content in zip(slots, contents, strict=True):
            if content is not _EMPTY:
                slot.__set__(value, content)
            elif _in_slot(slot, value) is not _EMPTY:
                slot.__delete__(value)

    return Kind(kind, read, write)


class _EMPTY:  # a class, which a copy leaves as it is
    """Content of a slot that is not set."""


def _in_slot(slot: _Slot, value: Any) -> Any:
    try:
        return slot.__get__(value)
    except AttributeError:
        return _EMPTY


def space_of(value: object) -> dict[str, Any] | None:
    """Return the dict of an object; None without one.

    A ``__getattr__`` of its class is not asked.
    """
    try:
        space = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return cast("dict[str, Any]", space) if type(space) is dict else None
