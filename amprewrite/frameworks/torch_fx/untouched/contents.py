"""Contents of the values of a model: its containers, objects and generators.

A value is looked into only as far as its type is known, by the functions of that type:
a list, dict, set, deque or tuple, an array, the attributes of an object, a generator of
random numbers.
"""

import pickle
import random
import sys
from collections.abc import Callable
from functools import partial
from operator import is_
from typing import Any, cast

import torch
from torch import nn

from amprewrite.frameworks.torch_fx.untouched.kinds import (
    DICT,
    PLAIN,
    Kind,
    is_same,
    is_users,
    kind_of_class,
    module_of,
    slots_of,
    space_of,
)

MOST = 20_000
"""Largest number of containers and objects that are looked into, for each model.

A model may refer to a trainer or a data set. What lies beyond is not looked into.
"""


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
        if all(map(is_, now, self.contents)):  # as nearly always
            return False
        return not all(map(is_same, now, self.contents))

    def constants(self) -> dict[str, str]:
        """Return the names that replaced None, if nothing else changed."""
        return {}

    def restore(self) -> None:
        """Put the contents back, if they are others now."""
        if self._kind.write is not None and self.is_changed():
            self._kind.write(self.value, self.contents)


class _Space(Content):
    """The attributes of an object.

    The first call of a transformers model with labels names the kind of its loss in
    ``config.problem_type``, where None was.
    """

    def constants(self) -> dict[str, str]:
        """Return the names that replaced None, if nothing else changed."""
        before = dict(zip(self.contents[::2], self.contents[1::2], strict=True))
        now = self.value.items()
        news = {n: v for n, v in now if not is_same(v, before.get(n, before))}
        named = all(type(news[n]) is str and before.get(n, n) is None for n in news)
        return news if named and len(now) == len(before) else {}


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
    return numpys and module_of(kind).startswith("numpy.random")


_Read = Callable[[Any], Content | None]


def _reads_of(cls: type[Any]) -> tuple[_Read, ...]:
    """Return how the contents of objects of a class are read.

    They are items, attributes of the user's objects, and states.
    """
    container, reads = kind_of_class(cls), list[_Read]()
    if container is not None:
        reads.append(partial(Content, kind=container))
        if cls is container.type:  # most are
            return tuple(reads)
    if _is_generator(cls):
        reads.append(Drawn)
    elif cls.__name__ == "ndarray" and module_of(cls) == "numpy":
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

    def __init__(self, most: int = MOST, longest: int = sys.maxsize) -> None:
        """Begin with nothing.

        Args:
            most: Largest number of containers and objects that are looked into.
            longest: Largest number of the values of each of them.
        """
        self._most, self._longest = most, longest
        self.tensors: list[torch.Tensor] = []
        self.modules: list[nn.Module] = []
        self._met: dict[int, Any] = {}  # kept alive, so that no identity is reused
        self._reads: dict[type[Any], tuple[_Read, ...]] = {}

    def of(self, value: Any) -> list[Content]:
        """Return the contents of a value and of all that it contains.

        Those that were returned before are left out.
        """
        contents: list[Content] = []
        below, longest = [value], self._longest
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
            elif len(self._met) < self._most:
                reads = self._reads.get(kind)
                if reads is None:
                    reads = self._reads[kind] = _reads_of(kind)
                for read in reads:
                    content = read(inner)
                    if content is not None and len(content.contents) <= longest:
                        contents.append(content)
                        below += content.contents
        return contents
