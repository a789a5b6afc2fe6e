"""Places from which tensors are removed."""

from functools import cache, lru_cache
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from amprewrite.frameworks.torch_fx.capture.outliving.holders import forget


class Kept:
    """A class with an attribute, and another that it does not concern."""

    held: Any = None
    other = 1


class Slim:
    def __init__(self, held: Any) -> None:
        self.held, self.other = held, 1


@lru_cache
def bounded() -> Any:
    return torch.ones(2)


@cache
def unbounded() -> Any:
    return torch.ones(2)


def test_tensors_are_removed_from_where_they_are_held() -> None:
    kept: dict[str, Any] = {"other": 1, "it": torch.ones(2)}
    kept["both"] = (1, (torch.ones(2), 2))
    Kept.held = torch.ones(2)
    space, slim = SimpleNamespace(held=torch.ones(2), other=1), Slim(torch.ones(2))
    within = [kept["it"], kept["both"][1][0]]
    forget([*within, Kept.held, space.held, slim.held, bounded(), unbounded()])
    assert kept == {"other": 1}
    assert (Kept.held, space.held, slim.held) == (None, None, None)
    assert (Kept.other, space.other, slim.other) == (1, 1, 1)
    for function in (bounded, unbounded):
        assert function.cache_info().currsize == 0


def test_lists_are_left() -> None:
    held = [torch.ones(2)]
    forget(held)
    assert len(held) == 1
