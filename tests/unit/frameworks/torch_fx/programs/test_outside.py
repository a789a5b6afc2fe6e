"""Values outside of a model that its forwards read."""

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from amprewrite.frameworks.torch_fx.programs.flags import globals_in
from amprewrite.frameworks.torch_fx.programs.outside import (
    Outside,
    outside_key,
    outside_of,
)
from amprewrite.frameworks.torch_fx.programs.structure import are_same

GAIN, COUNT, UNREAD = 1.0, 0, 0
listed = 0  # as an attribute of the model


def helper(x: Any) -> Any:
    return x


class Base(nn.Module):
    inherited = 1


class Model(Base):
    """A model that reads GAIN, calls helper and counts in COUNT."""

    factor = 1
    calls = 0
    listed = (1, 2)

    def scaled(self, x: Any) -> Any:
        return x * self.factor

    @property
    def twice(self) -> Any:
        return 2 * self.inherited

    def forward(self, x: Any) -> Any:
        global COUNT  # noqa: PLW0603  # as users count
        COUNT += 1
        type(self).calls += 1
        late = getattr(self, "late", 1)
        return helper(self.scaled(x)) * GAIN * self.twice * self.listed[0] * late


@pytest.fixture
def names() -> Iterator[Any]:
    """Yield a function that sets names, which are as before afterwards."""
    patch = pytest.MonkeyPatch()

    def set_one(owner: Any, name: str, value: object) -> None:
        owner = globals() if owner is None else owner
        if isinstance(owner, dict):
            patch.setitem(owner, name, value)
        else:
            patch.setattr(owner, name, value, raising=False)

    yield set_one
    patch.undo()


def read() -> Any:
    return outside_of([nn.Sequential(Model()), Model()])


CHANGES: list[tuple[Any, str, object]] = [
    (None, "GAIN", 2.0),
    (None, "helper", lambda x: 2 * x),
    (Model, "factor", 2),
    (Base, "inherited", 2),
    (Model, "listed", (2, 1)),
    (Model, "scaled", lambda _, x: x),
    (Model, "twice", property(lambda _: 3)),
    (Model, "forward", lambda _, x: x),
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change[1])
def test_a_value_that_is_read_counts(names: Any, change: Any) -> None:
    outside = Outside(read())
    before, key = outside.values(), outside_key(read())
    assert outside.values() == before
    assert outside_key(read()) == key
    hash(key)
    names(*change)
    assert outside.values() != before
    assert outside_key(read()) != key


@pytest.mark.parametrize(
    ("owner", "name"),
    [(None, "UNREAD"), (None, "COUNT"), (Model, "calls"), (None, "listed")],
)
def test_a_value_that_is_not_read_or_that_the_code_sets_does_not_count(
    names: Any, owner: Any, name: str
) -> None:
    outside = Outside(read())
    before = outside.values()
    names(owner, name, 5)
    assert outside.values() == before


def test_tensors_that_cannot_be_compared_are_changed(names: Any) -> None:
    names(None, "GAIN", torch.ones(2))
    outside = Outside(read())
    before = outside.values()
    assert are_same(outside, before)
    names(None, "GAIN", torch.ones(3))
    assert not are_same(outside, before)
    names(None, "GAIN", torch.ones(2))
    assert not are_same(outside, before)


def test_all_names_count_in_code_that_asks_for_globals() -> None:
    def asking() -> Any:
        return globals()["GAIN"]

    assert "GAIN" not in globals_in(helper)
    assert "GAIN" in globals_in(asking)


def test_a_name_that_is_added_or_deleted_is_a_change(names: Any) -> None:
    outside = Outside(read())
    before, key = outside.values(), outside_key(read())
    names(Model, "late", 2)
    assert outside.values() != before
    assert outside_key(read()) != key
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(globals(), "GAIN")
        assert outside.values() == []


def test_classes_of_torch_have_no_values_outside() -> None:
    assert outside_of([nn.Linear(2, 2), nn.LSTM(2, 2), nn.Sequential()]) == []
