"""Whether a tensor changed."""

import gc
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from amprewrite.frameworks.torch_fx.capture.tensor_changes import Mark


def add(p: Any) -> None:
    with torch.no_grad():
        p.add_(1)


def other_memory(p: Any) -> None:
    p.data = torch.ones(1000)


def other_memory_often(p: Any) -> None:
    """The memory of the first may be that of the last again."""
    for _ in range(64):
        p.data = torch.ones(1000)


def resize(p: Any) -> None:
    p.detach().resize_(2000)


@pytest.mark.parametrize("change", [add, other_memory, other_memory_often, resize])
def test_a_change_is_seen(change: Callable[[Any], None]) -> None:
    tensor = nn.Parameter(torch.zeros(1000))
    mark = Mark(tensor)
    assert mark.holds(tensor)
    change(tensor)
    assert not mark.holds(tensor)
    assert Mark(tensor).holds(tensor)


def test_another_tensor_is_another() -> None:
    tensor = torch.zeros(3)
    assert not Mark(tensor).holds(tensor.detach())
    assert not Mark(torch.zeros(3)).holds(torch.zeros(3))


def test_neither_the_tensor_nor_its_memory_is_kept() -> None:
    tensor = torch.zeros(3)
    memory, mark = StorageWeakRef(tensor.untyped_storage()), Mark(tensor)
    assert not memory.expired()
    del tensor
    gc.collect()
    assert memory.expired()
    assert not mark.holds(torch.zeros(3))


def test_a_sparse_tensor_has_no_memory_of_its_own() -> None:
    tensor = torch.eye(3).to_sparse()
    assert Mark(tensor).holds(tensor)
