"""A dataclass with a fast ``__init__`` is what it was: frozen, compared, pickled."""

import inspect
import pickle
from dataclasses import FrozenInstanceError, dataclass, field, replace
from typing import Any

import pytest

from amprewrite.runtime.fast_init import fast_init


@fast_init
@dataclass(frozen=True, slots=True)
class Made:
    name: str
    kind: str = "plain"
    size: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        """Count the letters."""
        object.__setattr__(self, "size", len(self.name))


@dataclass(frozen=True, slots=True)
class Usual:
    name: str
    kind: str = "plain"


@fast_init
@dataclass(frozen=True, slots=True, kw_only=False)
class Fast:
    name: str
    kind: str = "plain"


def test_it_is_made_as_before_and_frozen() -> None:
    made = Made("abc")
    assert type(made) is Made
    assert (made.name, made.kind, made.size) == ("abc", "plain", 3)
    assert repr(made) == "Made(name='abc', kind='plain', size=3)"
    with pytest.raises(FrozenInstanceError):
        setattr(made, "name", "other")  # noqa: B010  # a type checker refuses it
    assert inspect.signature(Fast) == inspect.signature(Usual)


def test_it_is_compared_copied_and_pickled() -> None:
    made = Made("abc", kind="other")
    assert {made, Made("abc", "other")} == {made}
    assert replace(made, name="ab") == Made("ab", "other")
    again = pickle.loads(pickle.dumps(made))
    assert again == made
    assert (type(again), again.size) == (Made, 3)


def test_wrong_arguments_are_refused_as_before() -> None:
    kinds: list[Any] = [Made, Usual]
    messages: list[str] = []
    for kind in kinds:
        with pytest.raises(TypeError) as caught:
            kind(size=3)
        messages.append(str(caught.value).partition(".")[2])
    assert messages[0] == messages[1]


def test_a_class_that_it_cannot_fill_is_refused() -> None:
    @dataclass(frozen=True, slots=True)
    class Listing:
        names: list[str] = field(default_factory=list[str])

    @dataclass(frozen=True)
    class Open:
        name: str

    for kind in (Listing, Open):
        with pytest.raises(TypeError, match=f"found {kind.__name__}; want a frozen"):
            fast_init(kind)
