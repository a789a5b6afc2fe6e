"""Values are copied where ``copy.deepcopy`` fails."""

import threading
from collections import deque
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from amprewrite.frameworks.torch_fx.untouched.rebuild import rebuilt


def _raise(*_: Any) -> Any:
    raise NotImplementedError


_refuse: Any = _raise


class StrangeList(list[Any]):
    """A list that cannot be iterated over."""

    __iter__ = _refuse


class StrangeDict(dict[str, Any]):
    """A dict that cannot be iterated over, with an attribute."""

    note: str
    __iter__ = items = _refuse


class StrangeTuple(tuple[Any, ...]):
    """A tuple that cannot be iterated over."""

    __slots__ = ()
    __iter__ = _refuse


class StrangeDeque(deque[Any]):
    """A deque that cannot be iterated over."""

    __iter__ = _refuse


class Asked:
    """An object that has no method to copy it, and says so by another error."""

    def __init__(self) -> None:
        self.held = [1]

    def __getattr__(self, name: str) -> Any:
        raise NotImplementedError(name)


class Slots:
    """An object with a slot, as above."""

    __slots__ = ("empty", "held")
    __getattr__ = Asked.__getattr__

    def __init__(self) -> None:
        self.held = [1]


def test_containers_and_objects_are_copied_with_their_contents() -> None:
    inner, tensor = [1], torch.ones(1)
    table = StrangeDict(a=inner)
    table.note = "here"
    value = [
        StrangeList([inner, tensor]),
        table,
        StrangeTuple((inner,)),
        StrangeDeque([inner], 3),
        (asked := Asked()),
        Slots(),
    ]
    twin = rebuilt(value, {})
    assert list(map(type, twin)) == list(map(type, value))
    own, copied = list.__iter__(twin[0])
    assert own == inner
    assert own is not inner
    assert copied is not tensor
    assert dict.__getitem__(twin[1], "a") is own
    assert twin[1].note == "here"
    assert next(tuple.__iter__(twin[2])) is own
    assert (next(deque.__iter__(twin[3])) is own, twin[3].maxlen) == (True, 3)
    assert twin[4].held == asked.held
    assert twin[4].held is not asked.held
    assert twin[5].held == [1]


def test_a_class_that_says_how_it_is_copied_is_asked() -> None:
    class Stuck:
        def __deepcopy__(self, memo: Any) -> Any:
            raise RuntimeError("no copies")

    for value in (Stuck(), threading.Lock()):
        with pytest.raises((RuntimeError, TypeError)):
            rebuilt([value], {})
