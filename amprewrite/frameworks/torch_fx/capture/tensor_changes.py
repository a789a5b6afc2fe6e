"""Detect whether a tensor changed since a copy of it was made."""

import weakref
from collections.abc import Iterable, Sequence
from operator import attrgetter, is_
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from amprewrite.frameworks.torch_fx.compat.tensor_internals import (
    has_own_values,
    reads_values,
    storage_identity,
    version,
    writes,
)

SAMPLES = 64
"""Largest number of elements that are compared, of tensors on a CPU."""

TOGETHER = 512
"""Largest number of elements of many tensors that are compared together.

Each is in a line of memory that no cache holds, which takes 0.1 us: 64 elements of each
of 54 convolutions took a fifth of the time of their kernels (a small ResNet, measured).
"""

LEAST = 8
"""Smallest number of compared elements of a tensor that has as many."""

STARTS = 8
"""Number of places at which the compared elements of a tensor may start.

Few elements of a tensor of many zeros are all zero, and a product with a number would
not change them: they start where the most are others.
"""

_SPREAD = 0.97
"""Factor of the step between them, so that they are in different columns."""


class Mark:
    """The state of a tensor: its identity, its number of writes, and its memory.

    Detected are writes that torch counts (in place, by an optimizer,
    ``load_state_dict``), another tensor, and other memory (``weight.data = other``).
    torch does not count writes through ``weight.data``, NumPy or a pointer: of a
    contiguous tensor on a CPU, :data:`SAMPLES` elements are compared, so that a write
    to all of it is detected, one to a few rows perhaps. On other devices a comparison
    would wait for the device, and these writes are not detected.

    Attributes:
        writes: Number of writes that torch counted.
        place: Identity of its memory, and its layout there; empty for a sparse tensor.
        sample: The elements that are compared; None if none are.
    """

    def __init__(self, tensor: torch.Tensor, *, samples: bool = True) -> None:
        """Record the state of a tensor; neither it nor its memory is kept alive.

        Args:
            tensor: The tensor.
            samples: Whether elements are compared; see :class:`Samples` for many
                tensors.
        """
        self._identity, self.writes = id(tensor), writes(tensor)
        # Weak references, so that the memory is freed and its identity is not reused.
        # To a tensor with a storage there is none: torch.utils.swap_tensors, which
        # load_state_dict may use, refuses tensors with weak references.
        self._memory = self._tensor = None
        self.place: tuple[Any, ...] = ()
        if tensor.layout == torch.strided:
            self._memory = StorageWeakRef(tensor.untyped_storage())
            self.place = storage_identity(tensor), *_layout(tensor)
        else:
            self._tensor = weakref.ref(tensor)
        self._count, self._step = _sampling(tensor, SAMPLES) if samples else (0, 1)
        self.sample = self._read(tensor).clone() if self._count else None

    def holds(self, tensor: torch.Tensor) -> bool:
        """Return whether ``tensor`` is unchanged since it was recorded."""
        if self._identity != id(tensor) or self.writes != writes(tensor):
            return False
        if not self._has_same_memory(tensor):
            return False
        if self.sample is None or not has_own_values(tensor):
            return True
        return torch.equal(self.sample, self._read(tensor))

    def _has_same_memory(self, tensor: torch.Tensor) -> bool:
        if self._tensor is not None:
            return self._tensor() is tensor
        strided = tensor.layout == torch.strided
        return strided and self.place == (storage_identity(tensor), *_layout(tensor))

    def is_like(self, other: "Mark") -> bool:
        """Return whether two marks of one tensor found no change between them."""
        if self.writes != other.writes or self.place != other.place:
            return False
        if self.sample is None or other.sample is None:
            return True
        return torch.equal(self.sample, other.sample)

    def _read(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the elements to compare, as a view that is not differentiated."""
        return _bits(tensor).as_strided((self._count,), (self._step,))


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return all of a tensor but its memory and its values."""
    bits = tensor.is_conj(), tensor.is_neg()
    return tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype, bits


class Marks:
    """The state of many tensors, compared at once: 0.4 us each (measured).

    Detected is what a :class:`Mark` detects, by fewer elements of each: see
    :class:`Samples`. Tensors and memory are kept alive, so that no other tensor gets
    the same address.
    """

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        """Record the state of the tensors.

        Args:
            tensors: Tensors of which :func:`counts_writes` is true.
        """
        self._tensors = tuple(tensors)
        self._memory = [tensor.untyped_storage() for tensor in self._tensors]
        self._complex = [tensor for tensor in self._tensors if tensor.is_complex()]
        self._state = self._read()
        self._samples = Samples(self._tensors)

    def hold(self, tensors: Sequence[torch.Tensor] | None = None) -> bool:
        """Return whether the tensors are unchanged.

        Args:
            tensors: The tensors now, which may be others; None for those recorded.
        """
        if tensors is not None and not all(map(is_, self._tensors, tensors)):
            return False
        try:
            return self._read() == self._state and self._samples.hold()
        except RuntimeError:  # one became a tensor of another kind (swap_tensors)
            return False

    def _read(self) -> list[list[Any]]:
        """Return the number of writes, the address and the layout of each tensor."""
        reads = version, torch.Tensor.data_ptr
        found = [[*map(read, self._tensors)] for read in reads]
        return [*found, *layouts(self._tensors), [*map(_layout, self._complex)]]


def layouts(tensors: Sequence[torch.Tensor]) -> list[list[Any]]:
    """Return the shapes, the strides and the dtypes of many tensors.

    Args:
        tensors: Tensors with strides.
    """
    reads: tuple[Any, ...] = _SHAPE, torch.Tensor.stride, _DTYPE
    return [[*map(read, tensors)] for read in reads]


_SHAPE, _DTYPE = attrgetter("shape"), attrgetter("dtype")


class Samples:
    """Elements of many tensors, compared at once.

    One comparison for all of a dtype takes 0.2 us a tensor, one for each tensor 5 us.
    Of two dtypes at once, which are converted, it takes 1 us (measured). The elements
    are those that a :class:`Mark` compares, but fewer of each of many tensors.

    Attributes:
        known: The elements, one after the other, for each dtype of their bits.
        starts: The first of each tensor.
    """

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        """Record elements of the tensors, and keep their memory alive."""
        tensors = list(tensors)
        most = min(SAMPLES, max(LEAST, TOGETHER // max(len(tensors), 1)))
        found = [(_bits(tensor), *_sampling(tensor, most)) for tensor in tensors]
        found = [(bits, n, step, _start(bits, n, step)) for bits, n, step in found if n]
        self.starts = [start for *_, start in found]
        views: dict[torch.dtype, list[torch.Tensor]] = {}
        for bits, n, step, start in found:
            view = bits.as_strided((n,), (step,), bits.storage_offset() + start)
            views.setdefault(view.dtype, []).append(view)
        self._views = list(views.values())
        self.known = [*map(torch.cat, self._views)]

    def hold(self) -> bool:
        """Return whether the elements are unchanged, as far as they can be read."""
        if not self.known or not reads_values():
            return True
        return all(map(torch.equal, map(torch.cat, self._views), self.known))

    def are_like(self, other: "Samples") -> bool:
        """Return whether another record of the same tensors has the same elements."""
        same = self.starts == other.starts and len(self.known) == len(other.known)
        return same and all(map(torch.equal, self.known, other.known))


_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Types with the bits of other types, by their bytes."""


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements as integers: a NaN is no other value than before."""
    held = tensor.detach()
    kind = _INTEGERS.get(held.itemsize)
    known = held.layout is torch.strided and held.is_contiguous()
    known = known and not (held.is_conj() or held.is_neg())  # a mark has these bits
    return held.view(kind) if known and kind is not None else held


def _sampling(tensor: torch.Tensor, most: int) -> tuple[int, int]:
    """Return the number of elements of a tensor to compare, and the step between.

    Args:
        tensor: The tensor.
        most: Largest number of elements.
    """
    where = tensor.device.type == "cpu" and tensor.layout is torch.strided
    if not where or not has_own_values(tensor) or not tensor.is_contiguous():
        return 0, 1
    count = min(tensor.numel(), most)
    return count, max(1, int(tensor.numel() / most * _SPREAD))


def _start(bits: torch.Tensor, count: int, step: int) -> int:
    """Return the first element to compare, after which the most are not zero.

    Args:
        bits: The elements of a tensor.
        count: Number of elements to compare.
        step: Step between them.
    """
    starts = min(STARTS, step)
    apart = step // starts
    rows = bits.as_strided((starts, count), (apart, step))
    if rows.dtype in _INTEGERS.values():
        rows = rows << 1  # the sign of zero does not count
    return int(rows.count_nonzero(1).argmax()) * apart
