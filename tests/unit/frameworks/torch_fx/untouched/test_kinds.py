"""Kinds of values are those of their types, whatever their classes say."""

from collections import OrderedDict
from typing import Any

import pytest

pytest.importorskip("torch")

from amprewrite.frameworks.torch_fx.untouched.kinds import (
    inside,
    is_same,
    is_users,
    kind_of,
    slots_of,
    space_of,
)


class Strange(OrderedDict[str, Any]):
    """A dict that is read otherwise than it is stored, with attributes."""

    def items(self) -> Any:
        raise NotImplementedError

    __iter__ = __len__ = keys = items


class Slots:
    """An object with slots alone."""

    __slots__ = ("empty", "full")

    def __init__(self) -> None:
        self.full = 1


def test_a_number_that_is_none_is_the_same() -> None:
    nan = float("nan")
    assert is_same(nan, float("nan"))
    assert not is_same(1, 1.0)
    assert not is_same([1], [1])


def test_the_contents_are_read_and_written_by_the_type() -> None:
    value = Strange(a=1, b=2)
    kind = kind_of(value)
    assert kind is not None
    assert kind.type is OrderedDict
    assert kind.write is not None
    assert inside(value) == ["a", 1, "b", 2]
    kind.write(value, ["b", 3, "a", 4])
    assert inside(value) == ["b", 3, "a", 4]


def test_a_number_contains_nothing() -> None:
    assert kind_of(1) is kind_of(None) is None
    assert inside("text") == []


def test_objects_have_a_dict_or_slots() -> None:
    value, kind = Slots(), slots_of(Slots)
    assert space_of(value) is None
    assert is_users(Slots)
    assert not is_users(dict)
    empty, full = kind.read(value)
    assert full == 1
    assert kind.write is not None
    kind.write(value, [2, empty])
    assert (value.empty, hasattr(value, "full")) == (2, False)
