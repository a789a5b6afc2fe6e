"""Variables outside of a model that its forward writes."""

from functools import lru_cache
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import amprewrite
from amprewrite.frameworks.torch_fx.untouched.surroundings import Surroundings

NUMBER, LATER = 1, None
EVENTS: list[Any] = []
TABLE: dict[str, list[int]] = {"sizes": []}


class Store:
    """Object and class with an attribute."""

    last: Any = None


store = Store()


@lru_cache
def cached(n: int) -> Any:
    return torch.ones(n)


def by_default(n: int, known: dict[int, int] = {}) -> int:  # noqa: B006  # a cache
    return known.setdefault(n, n)


def helper(kind: str) -> None:
    """Write, called by a forward."""
    global NUMBER, LATER  # noqa: PLW0603  # what is tested
    match kind:
        case "NUMBER":
            NUMBER += 1
        case "NEW":
            globals()["NEW"] = 1
        case "LATER":
            LATER = 1
        case "EVENTS":
            [EVENTS.append(n) for n in range(2)]  # in code inside of the function
        case "TABLE":
            TABLE["sizes"].append(1)
        case "last":
            Store.last = 1
        case "store":
            store.last = 2
        case "by_default":
            by_default(3)
        case _:
            cached(3)


class Model(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.inner, self.kind = nn.Linear(4, 4), kind

    def forward(self, x: Any) -> Any:
        helper(self.kind)
        return self.inner(x)


def state() -> Any:
    return (
        *(NUMBER, LATER, list(EVENTS), list(TABLE["sizes"]), Store.last),
        *(vars(store), dict((by_default.__defaults__ or ({},))[0])),
        *("NEW" in globals(), cached.cache_info().currsize),
    )


WRITES = (
    *("NUMBER", "NEW", "LATER", "EVENTS", "TABLE", "last", "store", "by_default"),
)


@pytest.mark.parametrize("kind", WRITES)
def test_what_a_forward_writes_is_named_and_put_back(kind: str) -> None:
    cached.cache_clear()
    model, before = nn.Sequential(Model(kind)), str(state())
    around = Surroundings([model])
    assert [*around.written()] == []
    model(torch.ones(2, 4))
    assert kind in {*around.written()}
    assert str(state()) != before
    around.restore()
    assert str(state()) == before
    assert [*around.written()] == []


@pytest.mark.parametrize("kind", WRITES)
def test_a_converted_model_writes_at_each_call(kind: str) -> None:
    cached.cache_clear()
    model, before = Model(kind).eval(), str(state())
    around = Surroundings([model])
    converted = amprewrite.convert(model, args=(torch.ones(2, 4),))
    assert str(state()) == before
    converted(torch.ones(2, 4))
    assert str(state()) != before
    around.restore()


def test_a_cache_that_was_added_to_is_cleared_and_not_named() -> None:
    cached.cache_clear()
    around = Surroundings([Model("cached")])
    cached(5)
    assert [*around.written()] == []
    around.restore()
    assert cached.cache_info().currsize == 0


def writing(events: list[int], count: int) -> type[nn.Module]:
    class Writing(nn.Linear):
        """Writes a list and a number around it."""

        def forward(self, input: Any) -> Any:  # noqa: A002  # name in nn.Linear
            nonlocal count
            count += 1
            events.append(count)
            return super().forward(input)

    return Writing


def test_variables_around_a_nested_function_are_named_and_put_back() -> None:
    events = list[int]()
    model = nn.Sequential(writing(events, 5)(4, 4), nn.ReLU())
    around = Surroundings([model])
    model(torch.ones(4))
    assert sorted({*around.written()}) == ["count", "events"]
    around.restore()
    assert events == []
    model(torch.ones(4))
    assert events == [6]


def test_objects_that_raise_are_left_alone() -> None:
    class Refuses(dict[Any, Any]):
        def __len__(self) -> int:
            raise NotImplementedError

        def __eq__(self, other: object) -> bool:
            raise NotImplementedError

        __hash__: Any = None

    refuses = Refuses(a=1)

    class Reads(nn.Linear):
        def forward(self, input: Any) -> Any:  # noqa: A002  # name in nn.Linear
            return super().forward(input) * dict.__getitem__(refuses, "a")

    around = Surroundings([Reads(4, 4)])
    assert [*around.written()] == []
    dict.__setitem__(refuses, "a", 2)
    assert [*around.written()] == ["refuses"]
    around.restore()
    assert dict.__getitem__(refuses, "a") == 1


def test_models_of_torch_have_no_surroundings() -> None:
    around: Any = Surroundings([nn.Sequential(nn.Linear(2, 2), nn.LSTM(2, 2))])
    assert vars(around)["_spaces"] == {}
