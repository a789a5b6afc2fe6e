"""Dicts that count their changes."""

import copy
import pickle
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from amprewrite.frameworks.torch_fx.plain.watched import (
    Watched,
    WatchedTensors,
    watch_tensors,
)
from amprewrite.frameworks.torch_fx.programs.structure import Watch

CHANGES: dict[str, Callable[[Watched], object]] = {
    "set": lambda held: held.__setitem__("c", 3),
    "replace": lambda held: held.__setitem__("a", 3),
    "delete": lambda held: held.__delitem__("a"),
    "pop": lambda held: held.pop("a"),
    "pop with a default": lambda held: held.pop("z", None),
    "clear": lambda held: held.clear(),
    "update": lambda held: held.update(a=2, c=3),
    "setdefault": lambda held: held.setdefault("c", 3),
    "or": lambda held: held.__ior__({"c": 3}),
}
"""Every way to change the items of a dict."""


def watched() -> tuple[Watched, Watch]:
    watch = Watch()
    return Watched({"a": 1, "b": 2}, watch), watch


@pytest.mark.parametrize("name", CHANGES)
def test_every_change_is_counted(name: str) -> None:
    held, watch = watched()
    plain = OrderedDict(held)
    CHANGES[name](held)
    untyped: Any = plain
    CHANGES[name](untyped)
    assert watch.structure > 0
    assert list(held.items()) == list(plain.items())


@pytest.mark.parametrize(
    "change", [lambda held: held.popitem(), lambda held: held.move_to_end("a")]
)
def test_popitem_and_a_change_of_the_order_are_counted(change: Any) -> None:
    held, watch = watched()
    change(held)
    assert list(held) != ["a", "b"]
    assert watch.structure > 0


def test_filling_and_reading_are_no_changes() -> None:
    held, watch = watched()
    assert (held["a"], held.get("z"), "b" in held) == (1, None, True)
    assert list(held.items()) == [("a", 1), ("b", 2)]
    assert watch.structure == 0


def test_a_changed_dict_leaves_the_one_it_was_made_of_as_it_is() -> None:
    given = {"a": 1}
    Watched(given, Watch())["b"] = 2
    assert given == {"a": 1}


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda d: pickle.loads(pickle.dumps(d))]
)
def test_copies_are_plain_dicts(copied: Callable[[Any], Any]) -> None:
    held, watch = watched()
    twin = copied(held)
    assert type(twin) is OrderedDict
    assert twin == held
    twin["c"] = 3
    assert "c" not in held
    assert watch.structure == 0


def test_a_deep_copy_copies_the_values_and_itself_once() -> None:
    held, _ = watched()
    held["list"] = [1]
    held["self"] = held
    twin = copy.deepcopy(held)
    assert twin["list"] == [1]
    assert twin["list"] is not held["list"]
    assert twin["self"] is twin


def test_a_union_and_a_copy_are_plain() -> None:
    held, watch = watched()
    for made in (held.copy(), held | {}, {} | held):
        assert type(made) is not Watched
        assert made == held
    assert watch.structure == 0


def test_of_tensors_it_counts_which_are_none() -> None:
    layer, watch = torch.nn.Linear(2, 2, bias=False), Watch()
    watch_tensors(layer, watch, linked=False)
    held: Any = layer._parameters
    assert type(held) is WatchedTensors
    held["weight"] = torch.nn.Parameter(torch.ones(2, 2))
    assert watch.structure == 0
    held["bias"] = torch.nn.Parameter(torch.ones(2))
    assert watch.structure == 1
    held["bias"] = None
    assert watch.structure == 2
    del held["bias"]
    assert watch.structure == 3


def test_a_copy_of_tensors_is_watched_as_it_is() -> None:
    layer, watch = torch.nn.Linear(2, 2, bias=False), Watch()
    watch_tensors(layer, Watch(), linked=False)
    twin = copy.deepcopy(layer)
    held = twin._parameters
    watch_tensors(twin, watch, linked=True)
    assert twin._parameters is held
    held["bias"] = torch.nn.Parameter(torch.ones(2))
    assert watch.structure == 1
    assert type(pickle.loads(pickle.dumps(held))) is dict
