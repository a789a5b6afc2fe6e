"""Contents of the values of a model: its containers, objects and generators.

A value is looked into only as far as its type is known, by the functions of that type:
a list, dict, set, deque or tuple, an array, the attributes of an object, a generator of
random numbers. So no code of the user's objects runs, also where a class has methods
such as ``__len__`` or ``__eq__`` that raise.
"""

import pickle
import random
import sys
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial
from types import FunctionType, MemberDescriptorType, ModuleType
from typing import Any, NamedTuple, cast

import torch
from torch import nn

from amprewrite.user_code import LIBRARIES

MOST = 20_000
"""Largest number of containers and objects that are looked into, for each model.

A model may refer to a trainer or a data set. What lies beyond is not looked into.
"""

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
_list: Any = list
_set: Any = set
_deque: Any = deque


def _dict_kind(base: Any) -> "Kind":
    """Return the kind of dicts of a class: one with an order of its own has its own."""

    def read(value: Any) -> Values:
        return [part for pair in base.items(value) for part in pair]

    def write(value: Any, contents: Values) -> None:
        base.clear(value)
        for key, item in zip(contents[::2], contents[1::2], strict=True):
            base.__setitem__(value, key, item)

    return Kind(base, read, write)


def _write_list(value: Any, contents: Values) -> None:
    _list.__setitem__(value, slice(None), contents)


def _write_set(value: Any, contents: Values) -> None:
    _set.clear(value)
    _set.update(value, contents)


def _write_deque(value: Any, contents: Values) -> None:
    _deque.clear(value)
    _deque.extend(value, contents)


def _iterated(kind: Any) -> Callable[[Any], Values]:
    return lambda value: list(kind.__iter__(value))


DICT = _dict_kind(_dict)

KINDS = (
    _dict_kind(_ordered),
    DICT,
    Kind(list, _iterated(list), _write_list),
    Kind(tuple, _iterated(tuple), None),
    Kind(set, _iterated(set), _write_set),
    Kind(deque, _iterated(deque), _write_deque),
)
"""The types of containers."""


_EXACT: dict[Any, Kind | None] = {
    **dict.fromkeys(PLAIN),
    **{kind.type: kind for kind in KINDS},
}


def kind_of(value: object) -> Kind | None:
    """Return the type of a container; None of any other value."""
    return _kind_of_class(type(value))


def _kind_of_class(cls: type[Any]) -> Kind | None:
    if cls in _EXACT:
        return _EXACT[cls]
    return next((kind for kind in KINDS if issubclass(cls, kind.type)), None)


def inside(value: object) -> Values:
    """Return the contents of a container: of a dict keys and values, in turn.

    There are none in a value of another type.
    """
    kind = kind_of(value)
    return [] if kind is None else kind.read(value)


class Content:
    """Contents of one value, at some time.

    Attributes:
        value: The value.
        contents: Its contents then.
    """

    def __init__(self, value: Any, kind: Kind) -> None:
        """Read the contents."""
        self.value, self._kind = value, kind
        self.contents = kind.read(value)

    def is_changed(self) -> bool:
        """Return whether the contents are others now."""
        now = self._kind.read(self.value)
        if len(now) != len(self.contents):
            return True
        return not all(map(is_same, now, self.contents))

    def is_written(self) -> bool:
        """Return whether a forward that is captured once would lose a write to them."""
        return self.is_changed()

    def restore(self) -> None:
        """Put the contents back, if they are others now."""
        if self._kind.write is not None and self.is_changed():
            self._kind.write(self.value, self.contents)


class _Space(Content):
    """The attributes of an object."""

    def is_written(self) -> bool:
        """Return whether a write would be lost, other than of a name where None was.

        The first call of a transformers model with labels names the kind of its loss in
        ``config.problem_type``, and each later one gives it the same name.
        """
        now = self._kind.read(self.value)
        return len(now) != len(self.contents) or not all(
            is_same(value, before) or (before is None and type(value) is str)
            for value, before in zip(now, self.contents, strict=True)
        )


class _Elements(Content):
    """The elements of an array of NumPy."""

    def __init__(self, value: Any) -> None:
        self.value, self.contents = value, []
        self._elements = value.copy()

    def is_changed(self) -> bool:
        """Return whether the elements have other bits now."""
        return self.value.tobytes() != self._elements.tobytes()

    def restore(self) -> None:
        """Write the elements back, if they are others now."""
        if self.is_changed():
            self.value[...] = self._elements


class Drawn(Content):
    """State of a generator of random numbers: of Python, NumPy or torch.

    A module with such functions has the state of its own generator.
    """

    def __init__(self, value: Any) -> None:
        """Read the state."""
        self.value, self.contents = value, []
        self._state = self._read()

    def _read(self) -> bytes:
        get = getattr(self.value, "getstate", None) or getattr(
            self.value, "get_state", None
        )
        state = self.value.bit_generator.state if get is None else get()
        if isinstance(state, torch.Tensor):  # pickled, it has an address
            state = state.numpy().tobytes()
        return pickle.dumps(state)

    def is_changed(self) -> bool:
        """Return whether a number was drawn since."""
        return self._state != self._read()

    def restore(self) -> None:
        """Put the state back, if a number was drawn."""
        if not self.is_changed():
            return
        state = pickle.loads(self._state)  # noqa: S301  # our own bytes
        put = getattr(self.value, "setstate", None) or getattr(
            self.value, "set_state", None
        )
        if isinstance(self.value, torch.Generator):
            self.value.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
            return
        if put is None:
            self.value.bit_generator.state = state
        else:
            put(state)


def global_generators() -> dict[str, Drawn]:
    """Return the states of the generators of Python and NumPy, by their modules."""
    names = ("random", "numpy.random")
    return {name: Drawn(sys.modules[name]) for name in names if name in sys.modules}


def _is_generator(kind: type[Any]) -> bool:
    """Return whether objects of a class draw random numbers from a state.

    NumPy's classes are known by their names. The system's entropy has no state.
    """
    if issubclass(kind, (random.Random, torch.Generator)):
        return not issubclass(kind, random.SystemRandom)
    numpys = kind.__name__ in ("Generator", "RandomState")
    return numpys and _module(kind).startswith("numpy.random")


def _module(kind: type[Any]) -> str:
    name = type.__getattribute__(kind, "__module__")
    return name if isinstance(name, str) else ""


_OTHERS = frozenset((*LIBRARIES, "builtins", "numpy", *sys.stdlib_module_names))
"""Packages of classes: their objects are not looked into."""


def is_users(kind: type[Any]) -> bool:
    """Return whether a class is the user's, or of a library of models."""
    name = _module(kind).partition(".")[0]
    return name == "__main__" or (bool(name) and name not in _OTHERS)


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


_Read = Callable[[Any], Content | None]


def _reads_of(cls: type[Any]) -> tuple[_Read, ...]:
    """Return how the contents of objects of a class are read.

    They are items, attributes of the user's objects, and states.
    """
    container, reads = _kind_of_class(cls), list[_Read]()
    if container is not None:
        reads.append(partial(Content, kind=container))
        if cls is container.type:  # most are
            return tuple(reads)
    if _is_generator(cls):
        reads.append(Drawn)
    elif cls.__name__ == "ndarray" and _module(cls) == "numpy":
        reads.append(_Elements)
    elif is_users(cls):
        reads += _attributes_of, partial(Content, kind=slots_of(cls))
    return tuple(reads)


def _attributes_of(value: Any) -> Content | None:
    space = space_of(value)
    return None if space is None else _Space(space, DICT)


class Contents:
    """Contents of everything that can be reached from some values.

    Attributes:
        tensors: The tensors that were met, in this order; they are not looked into.
        modules: The modules that were met, likewise.
    """

    def __init__(self) -> None:
        """Begin with nothing."""
        self.tensors: list[torch.Tensor] = []
        self.modules: list[nn.Module] = []
        self._met: dict[int, Any] = {}  # kept alive, so that no identity is reused
        self._reads: dict[type[Any], tuple[_Read, ...]] = {}

    def of(self, value: Any) -> list[Content]:
        """Return the contents of a value and of all that it contains.

        Those that were returned before are left out.
        """
        contents: list[Content] = []
        below = [value]
        while below:
            inner = below.pop()
            kind = cast("type[Any]", type(inner))
            if kind in PLAIN or id(inner) in self._met:
                continue
            self._met[id(inner)] = inner
            if issubclass(kind, torch.Tensor):
                self.tensors.append(inner)
            elif issubclass(kind, nn.Module):
                self.modules.append(inner)
            elif len(self._met) < MOST:
                reads = self._reads.get(kind)
                if reads is None:
                    reads = self._reads[kind] = _reads_of(kind)
                for read in reads:
                    content = read(inner)
                    if content is not None:
                        contents.append(content)
                        below += content.contents
        return contents


class Variable:
    """A value at some time, with all that it contains.

    Attributes:
        value: The value.
        contents: What it contains.
    """

    def __init__(self, value: Any, *, looked_into: bool = True) -> None:
        """Record the value.

        Args:
            value: The value.
            looked_into: Whether its contents are recorded too.
        """
        self.value = value
        self.contents = Contents().of(value) if looked_into else []

    def is_changed(self, now: Any) -> bool:
        """Return whether ``now`` is another value, or has other contents."""
        if not is_same(now, self.value):
            return True
        return any(content.is_changed() for content in self.contents)

    def restore(self) -> None:
        """Put the contents back."""
        for content in self.contents:
            content.restore()
