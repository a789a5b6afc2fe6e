"""Values are looked into by the functions of their types alone."""

from collections import OrderedDict, deque
from typing import Any

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

from torch import nn

from amprewrite.frameworks.torch_fx.untouched.contents import Contents, Drawn


def _raise(*_: Any) -> Any:
    raise NotImplementedError


_refuse: Any = _raise


class StrangeList(list[Any]):
    """A list whose methods raise."""

    __len__ = __iter__ = __eq__ = __getitem__ = __bool__ = _refuse
    __hash__ = None


class StrangeDict(dict[str, Any]):
    """A dict whose methods raise."""

    __len__ = __iter__ = __eq__ = __getitem__ = keys = _refuse
    __hash__ = None


class Box:
    """An object with an attribute."""

    def __init__(self) -> None:
        self.count = 0

    def __getattr__(self, name: str) -> Any:
        raise NotImplementedError(name)


class Slots:
    """An object with a slot that is set, and one that is not."""

    __slots__ = ("count", "empty")

    def __init__(self) -> None:
        self.count = 0


def items(value: Any) -> list[Any]:
    return list(list.__iter__(value))


CASES: dict[str, tuple[Any, Any, Any]] = {
    "list": ([1], lambda v: v.append(2), list),
    "dict": ({"a": 1}, lambda v: v.update(a=2), dict),
    "order": (
        OrderedDict(a=1, b=2),
        lambda v: v.move_to_end("a"),
        lambda v: list(v.items()),
    ),
    "set": ({1}, lambda v: v.add(2), set),
    "deque": (deque([1], maxlen=1), lambda v: v.append(2), list),
    "nested": ({"a": ([1],)}, lambda v: v["a"][0].append(2), repr),
    "object": (Box(), lambda v: vars(v).update(count=1), lambda v: dict(vars(v))),
    "slots": (
        Slots(),
        lambda v: (setattr(v, "count", 1), setattr(v, "empty", 1)),
        lambda v: (v.count, hasattr(v, "empty")),
    ),
    "array": (np.zeros(2), lambda v: v.__setitem__(0, 1), lambda v: v.tolist()),
    "strange list": (StrangeList([1]), lambda v: list.append(v, 2), items),
    "strange dict": (
        StrangeDict(a=1),
        lambda v: dict.__setitem__(v, "a", 2),
        lambda v: list(dict.items(v)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_change_is_seen_and_put_back(name: str) -> None:
    value, change, read = CASES[name]
    before, was = Contents().of([value]), read(value)
    assert not any(content.is_changed() for content in before)
    change(value)
    assert read(value) != was
    assert any(content.is_changed() for content in before)
    for content in before:
        content.restore()
    assert read(value) == was
    assert not any(content.is_changed() for content in before)


def test_what_is_not_known_is_not_looked_into() -> None:
    part, tensor = nn.Linear(1, 1), torch.ones(1)
    found = Contents()
    assert len(found.of((part, tensor, print, object()))) == 1  # the tuple
    assert (found.modules, found.tensors) == ([part], [tensor])


def test_there_is_a_limit() -> None:
    assert len(Contents(most=3).of([[n] for n in range(9)])) < 5
    assert Contents(longest=3).of(["a", "b", "c", "d"]) == []


def test_a_list_in_itself_ends() -> None:
    value: list[Any] = []
    value.append(value)
    assert len(Contents().of(value)) == 1


def test_a_generator_of_torch_that_draws_nothing_is_unchanged() -> None:
    generator, states = torch.Generator(), list[Any]()
    drawn = Drawn(generator)
    for _ in range(8):
        states.append(generator.get_state())  # tensors at other addresses
        assert not drawn.is_changed()
    numbers = torch.rand(3, generator=generator)
    assert drawn.is_changed()
    drawn.restore()
    assert torch.equal(torch.rand(3, generator=generator), numbers)
