"""Whether a tensor changed."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from amprewrite.frameworks.torch_fx.capture.tensor_changes import (
    LEAST,
    SAMPLES,
    TOGETHER,
    Mark,
    Marks,
    Samples,
)
from amprewrite.frameworks.torch_fx.compat import tensor_internals


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


def through_data(p: Any) -> None:
    p.data.mul_(2)


def through_numpy(p: Any) -> None:
    p.detach().numpy()[:] = 2


def half_of_the_columns(p: Any) -> None:
    p.data[:, p.shape[1] // 2 :].add_(1)


@pytest.mark.parametrize("change", [through_data, through_numpy, half_of_the_columns])
@pytest.mark.parametrize("shape", [(1, 24), (40, 30), (1024, 1024)])
def test_a_write_that_torch_does_not_count_is_seen_on_a_cpu(
    change: Callable[[Any], None], shape: tuple[int, ...]
) -> None:
    tensor = nn.Parameter(torch.ones(shape))
    mark, writes = Mark(tensor), tensor._version
    assert mark.holds(tensor)
    change(tensor)
    assert tensor._version == writes, "torch counts none"
    assert not mark.holds(tensor)


@pytest.mark.parametrize("change", [through_data, through_numpy, half_of_the_columns])
@pytest.mark.parametrize("changed", [0, 1, 2])
def test_a_write_to_one_of_many_tensors_is_seen(
    change: Callable[[Any], None], changed: int
) -> None:
    tensors = [nn.Parameter(torch.ones(n, 24)) for n in (1, 5, 300)]
    samples = Samples([*tensors, torch.ones(4, 4).t()[:2], torch.ones(0)])
    assert samples.hold()
    change(tensors[changed])
    with tensor_internals.fake_mode():
        assert samples.hold(), "they are not read in a tracer"
    assert not samples.hold()
    assert Samples(tensors).hold()
    assert Samples([]).hold()


def test_values_are_not_compared_where_that_is_an_op_of_a_tracer() -> None:
    tensor = torch.ones(3)
    mark = Mark(tensor)
    with tensor_internals.fake_mode():
        assert mark.holds(tensor)
    assert torch.vmap(lambda x: x * mark.holds(tensor))(tensor).equal(tensor)


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


def test_no_weak_reference_to_a_tensor_with_a_storage_is_kept() -> None:
    """torch.utils.swap_tensors refuses tensors with weak references."""
    tensor, other = torch.ones(4), torch.zeros(4)
    mark = Mark(tensor)
    assert not weakref.getweakrefs(tensor)
    torch.utils.swap_tensors(tensor, other)
    assert not mark.holds(tensor)


def test_another_layout_of_the_same_memory_is_a_change() -> None:
    tensor = torch.arange(4.0).reshape(2, 2)
    mark = Mark(tensor)
    tensor.data = tensor.data.t()
    assert not mark.holds(tensor)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
def test_a_value_that_is_no_number_is_no_change(dtype: Any) -> None:
    tensor = torch.full((100,), torch.nan, dtype=dtype)
    assert Mark(tensor).holds(tensor)
    samples = Samples([tensor])
    assert samples.hold()
    tensor.data[:] = 1
    assert not samples.hold()


@pytest.mark.parametrize(
    ("count", "compared"),
    [(1, SAMPLES), (64, TOGETHER // 64), (1000, LEAST)],
)
def test_fewer_elements_of_each_of_many_tensors_are_compared(
    count: int, compared: int
) -> None:
    tensors = [torch.zeros(100, 30) for _ in range(count)]
    samples = Samples(tensors)
    assert [*map(len, samples.known)] == [count * compared]
    half_of_the_columns(tensors[-1])
    assert not samples.hold()


def test_elements_that_are_not_zero_are_compared_of_a_tensor_with_many_zeros() -> None:
    torch.manual_seed(0)
    tensors = [torch.randn(200, 64) * (torch.rand(200, 64) < 0.3) for _ in range(100)]
    offset = tensors[0].flatten()[64:].view(-1, 64)
    samples = Samples([*tensors, offset])
    for tensor in (*tensors, offset):
        tensor.data.mul_(2)
        assert not samples.hold()
        tensor.data.mul_(0.5)
        assert samples.hold()


def test_other_places_of_elements_are_a_change() -> None:
    """Elements that are equal at other places were not compared."""
    tensors = [torch.ones(4096) for _ in range(100)]
    before = Samples(tensors)
    assert Samples(tensors).are_like(before)
    tensors[0].data[:: int(1024 * 0.97)] = 0
    after = Samples(tensors)
    assert torch.equal(*after.known, *before.known)
    assert not after.are_like(before)


def in_place(tensor: Any) -> None:
    with torch.no_grad():
        tensor.add_(1)


def to_other_memory(tensor: Any) -> None:
    tensor.data = tensor.data.clone()


def to_another_layout(tensor: Any) -> None:
    tensor.data = tensor.data.t()


@pytest.mark.parametrize(
    "change",
    [in_place, through_data, through_numpy, to_other_memory, to_another_layout],
)
def test_a_change_of_one_of_many_tensors_is_seen(change: Callable[[Any], None]) -> None:
    tensors = [nn.Parameter(torch.ones(8, 8)) for _ in range(5)]
    marks = Marks(tensors)
    assert marks.hold()
    assert marks.hold(tensors)
    assert not marks.hold([*tensors[:4], nn.Parameter(torch.ones(8, 8))])
    change(tensors[3])
    assert not marks.hold()
    assert not marks.hold(tensors)


def to_a_part(tensor: Any) -> None:
    tensor.data = tensor.data[:4]


def to_another_dtype(tensor: Any) -> None:
    tensor.data = tensor.data.view(torch.int32)


def to_every_other(tensor: Any) -> None:
    tensor.data = torch.ones(8, 16)[:, ::2]


@pytest.mark.parametrize("change", [to_a_part, to_another_dtype, to_every_other])
def test_another_layout_or_memory_is_seen_by_all_marks(
    change: Callable[[Any], None],
) -> None:
    tensor = torch.ones(8, 8)
    mark, marks = Mark(tensor), Marks([tensor, torch.ones(3)])
    assert mark.holds(tensor)
    assert mark.is_like(Mark(tensor))
    change(tensor)
    assert not mark.holds(tensor)
    assert not mark.is_like(Mark(tensor))
    assert not marks.hold()


def test_the_conjugate_of_complex_numbers_is_a_change() -> None:
    tensors = [torch.ones(4, dtype=torch.complex64) * (1 + 2j), torch.ones(4)]
    marks, mark = Marks(tensors), Mark(tensors[0])
    tensors[0].data = tensors[0].data.conj()
    assert not marks.hold()
    assert not mark.holds(tensors[0])
    assert Marks(tensors).hold()


@pytest.mark.parametrize("sparse", [True, False])
def test_a_tensor_that_became_one_of_another_kind_is_a_change(*, sparse: bool) -> None:
    tensors = [torch.ones(4, 4), torch.ones(4, 4)]
    marks = Marks(tensors)
    with torch.inference_mode():
        other = torch.ones(4, 4)
    other = torch.eye(4).to_sparse() if sparse else other
    torch.utils.swap_tensors(tensors[0], other)
    assert not marks.hold()
