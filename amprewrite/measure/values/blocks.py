"""Values of tensors in blocks of float64, so that no whole copy of them is made.

A block stays in the processor's cache while several numbers of it are computed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Block = NDArray[np.float64]
"""Elements that follow each other in row-major order: f64[n]."""

SIZE = 2**16
"""Elements of a block, of 512 KiB: several of them fit into a cache.

With blocks of a quarter the calls take more time than the elements.
"""


class Values(Protocol):
    """Float values of one tensor; complex ones have a last dimension of two."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents."""
        ...

    @property
    def size(self) -> int:
        """The number of elements."""
        ...

    def block(self, start: int, stop: int) -> Block:
        """Return elements in row-major order, in float64; they may not be written."""
        ...


Held = Values | NDArray[Any]
"""Values of one tensor, or an array of them."""


@dataclass(frozen=True)
class ArrayValues:
    """Values of a NumPy array.

    Attributes:
        array: The array, contiguous in row-major order, of any float dtype.
    """

    array: NDArray[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents."""
        return self.array.shape

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.array.size

    def block(self, start: int, stop: int) -> Block:
        """Return elements in row-major order, in float64."""
        return self.array.reshape(-1)[start:stop].astype(np.float64, copy=False)


@dataclass(frozen=True)
class Bounded:
    """Values, with zeros where others exceed a limit.

    Attributes:
        values: The values.
        by: The others, of the same shape; NaN exceeds every limit.
        limit: Largest magnitude that does not exceed it.
    """

    values: Values
    by: Values
    limit: float

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents."""
        return self.values.shape

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.values.size

    def block(self, start: int, stop: int) -> Block:
        """Return elements in row-major order, in float64."""
        held = self.values.block(start, stop)
        kept = np.abs(self.by.block(start, stop)) <= self.limit
        return held if kept.all() else np.where(kept, held, 0.0)


def values_of(held: Held) -> Values:
    """Return an array as :class:`Values`, and others as they are."""
    if isinstance(held, np.ndarray):
        return ArrayValues(np.ascontiguousarray(held))
    return held


def blocks(*held: Held) -> Iterator[tuple[Block, ...]]:
    """Yield the blocks of several tensors of one size, side by side."""
    found = [values_of(one) for one in held]
    size = found[0].size
    for start in range(0, size, SIZE):
        stop = min(start + SIZE, size)
        yield tuple(one.block(start, stop) for one in found)


def is_equal(found: Held, wanted: Held) -> bool:
    """Return whether two tensors have the same values; NaN equals NaN."""
    if found.shape != wanted.shape:
        return False
    return all(np.array_equal(a, b, equal_nan=True) for a, b in blocks(found, wanted))


def are_equal(found: Sequence[Held], wanted: Sequence[Held]) -> bool:
    """Return whether two lists of tensors are equal, each to each."""
    alike = len(found) == len(wanted)
    return alike and all(map(is_equal, found, wanted))
