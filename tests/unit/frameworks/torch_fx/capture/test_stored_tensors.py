"""Tensors that a forward stores outside of itself in a trace."""

from collections.abc import Callable
from functools import cache, lru_cache
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn

import amprewrite
from amprewrite.frameworks.torch_fx.capture.export import export_model
from amprewrite.frameworks.torch_fx.capture.stored_tensors import StoredTensors
from amprewrite.frameworks.torch_fx.compat import watchers
from tests.torch_programs import relative_error

LOW = 1e-2
"""Relative error of bfloat16 products, with room."""

stored: Any = SimpleNamespace()


def rows(n: int) -> Tensor:
    """Return numbers by ops in place, on a view too, and of a literal."""
    made = torch.full((n, 8), float("-inf"))
    made[:, 0] = torch.tensor([0.5])
    made.mul_(2)
    return made.nan_to_num(neginf=0.25)


@lru_cache
def cached(n: int) -> Tensor:
    return rows(n)


@cache
def cached_pair(n: int) -> tuple[Tensor, Tensor]:
    return rows(n), rows(n) + 1


Known = dict[int, Tensor]


def by_default(n: int, known: Known = {}) -> Tensor:  # noqa: B006  # a cache
    if n not in known:
        known[n] = rows(n)
    return known[n]


class Kept:
    """A class with a table for all of its objects."""

    table: Tensor | None = None

    @classmethod
    def of(cls, n: int) -> Tensor:
        if cls.table is None or len(cls.table) != n:
            cls.table = rows(n)
        return cls.table


def in_object(n: int) -> Tensor:
    if getattr(stored, "table", None) is None or len(stored.table) != n:
        stored.table = rows(n)
    return stored.table


CACHES: dict[str, Callable[[int], Tensor]] = {
    "lru_cache": cached,
    "unbounded lru_cache of a pair": lambda n: cached_pair(n)[0],
    "dict in a default": by_default,
    "attribute of a class": Kept.of,
    "attribute of an object": in_object,
}


class Model(nn.Module):
    def __init__(self, table: Callable[[int], Tensor]) -> None:
        super().__init__()
        self.layer, self.table = nn.Linear(8, 8), table

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.table(x.shape[0])


def forget() -> None:
    watchers.failed.cache_clear()  # as in the first capture of a process
    cached.cache_clear()
    cached_pair.cache_clear()
    (by_default.__defaults__ or ({},))[0].clear()
    Kept.table = None
    vars(stored).clear()


@pytest.mark.parametrize("name", CACHES)
def test_what_is_stored_has_values_after_a_conversion(name: str) -> None:
    forget()
    model = Model(CACHES[name]).eval()
    converted = amprewrite.convert(model, args=(torch.randn(4, 8),))
    for n in (4, 6):
        x = torch.randn(n, 8)
        found = converted(x)
        assert type(CACHES[name](n)) is Tensor
        assert torch.equal(CACHES[name](n), rows(n))
        assert relative_error(found, model(x)) < LOW


class Remembers(nn.Module):
    """A model that stores its last result elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        stored.last = self.layer(x).detach()
        return stored.last * 2


def test_what_depends_on_the_arguments_is_stored_at_each_call() -> None:
    forget()
    model, x = Remembers().eval(), torch.randn(4, 8)
    converted = amprewrite.convert(model, args=(x,))
    for scale in (1, 3):
        converted(scale * x)
        found = stored.last
        model(scale * x)
        assert relative_error(found, stored.last) < LOW
    assert "stores once" in converted.plan.captured


class Draws(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(stored, "noise"):
            stored.noise = torch.randn(8)
        return x * stored.noise


def test_what_is_drawn_is_no_constant() -> None:
    forget()
    captured = export_model(Draws(), (torch.randn(4, 8),), {})
    assert captured.seen.stored == 1
    assert not hasattr(stored, "noise")


class Fails(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x + cached(x.shape[0])
        return y * 2 if y.sum() > 0 else y


def test_a_capture_that_fails_leaves_no_tensor_without_values() -> None:
    forget()
    with pytest.raises(amprewrite.errors.CaptureError):
        export_model(Fails(), (torch.randn(4, 8),), {})
    assert torch.equal(cached(4), rows(4))


@lru_cache
def in_dtype(dtype: Any) -> Tensor:
    return torch.arange(8).to(dtype)


class Casts(nn.Module):
    """A model whose second trace, in a low dtype, asks for other tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return (y.float() * in_dtype(y.dtype)).to(x.dtype)


def test_the_second_trace_stores_nothing() -> None:
    in_dtype.cache_clear()
    amprewrite.convert(Casts().eval(), args=(torch.randn(4, 8),))
    for dtype in (torch.float32, torch.bfloat16):
        assert torch.equal(in_dtype(dtype), torch.arange(8).to(dtype))


def test_nothing_is_stored_by_most_code() -> None:
    stored = StoredTensors()
    with stored.watching():
        torch.export.export(nn.Linear(3, 2), (torch.ones(1, 3),), strict=False)
    assert stored.settle() == 0
