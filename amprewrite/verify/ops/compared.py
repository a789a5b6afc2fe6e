"""Every number of an op's results against their references, in one pass.

The values are read once, block by block. Where the sum of squares of a block is finite,
so are its elements, and none of them is tested by itself. This pass is the time that
``verify`` spends beside the ops of the models: it is written for few passes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot
from typing import TypeVar

import numpy as np

from amprewrite.measure.runs import Block, OpSample, blocks
from amprewrite.verify.metrics import block_parts, finite_norm, norm

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Compared:
    """Numbers of one result of an op; norms are Euclidean.

    Attributes:
        size: Norm of the reference; non-finite elements of the reference are left out
            here and in the next two.
        accumulated: Norm of the error in the converted program; infinite if that has an
            element that is not finite.
        own: The same for the converted op alone.
        same: Norm of the result of the original's op on the operands of the converted
            one (:attr:`OpSample.kernel`), where both are finite; 0 if it was not run.
        kernel: Norm of the difference of those two, where both are finite.
        known: Number of elements where both are finite.
        largest: Largest finite magnitude of the reference.
        finite: Number of finite elements of the reference.
        lost: Number of those that are not finite in the converted program.
        small: Number of those that are no zero in the reference, and smaller than the
            smallest normal number in the converted program.
    """

    size: float
    accumulated: float
    own: float
    same: float
    kernel: float
    known: int
    largest: float
    finite: int
    lost: int
    small: int


def compared(sample: OpSample, smallest: Sequence[float]) -> list[Compared]:
    """Return the numbers of each result.

    Args:
        sample: The op.
        smallest: Smallest normal number of the format that stores each result; 0 to
            count no small elements.
    """
    return [_compared(sample, *row) for row in enumerate(smallest)]


def _compared(sample: OpSample, index: int, normal: float) -> Compared:
    reference, actual = sample.reference[index], sample.actual[index]
    alone, (kernels, sames) = sample.alone[index], sample.kernel
    tried, same = kernels[index], None if sames is None else sames[index]
    exact = sample.exact and tried is alone
    wanted, found = sample.whole or (reference, actual)
    roles = (reference, actual, alone, tried, reference if same is None else same)
    # Several roles may be played by one tensor, which is converted once then.
    distinct = {id(values): values for values in (*roles, wanted, found)}
    places = [[*distinct].index(id(values)) for values in (*roles, wanted, found)]
    sizes: list[tuple[float, ...]] = []
    counts: list[tuple[int, ...]] = []
    largest = 0.0
    with np.errstate(invalid="ignore", over="ignore"):
        for held in blocks(*distinct.values()):
            r, a, o, t, s, w, f = (held[place] for place in places)
            size, accumulated = finite_norm(r), finite_norm(a - r)
            is_known = size is not None and accumulated is not None
            if size is None or accumulated is None:
                accumulated, size = block_parts(a, r)
            if sample.exact:
                own = 0.0
            else:
                own = accumulated if o is a else block_parts(o, r, size)[0]
            if same is None:
                kernel, base, known = 0.0, 0.0, 0
            elif s is r and (t is r or t is a) and is_known:
                kernel, base, known = 0.0 if t is r else accumulated, size, s.size
            else:
                kernel, base, known = _kernel(t, s, exact=exact)
            peak, *numbers = _range(w, f, normal, finite=is_known and w is r)
            largest = max(largest, peak)
            sizes.append((size, accumulated, own, base, kernel))
            counts.append((known, *numbers))
    size, accumulated, own, base, kernel = (hypot(*row) for row in _columns(sizes, 5))
    known, finite, lost, small = (sum(row) for row in _columns(counts, 4))
    return Compared(
        size=size,
        accumulated=accumulated,
        own=own,
        same=base,
        kernel=kernel,
        known=known,
        largest=largest,
        finite=finite,
        lost=lost,
        small=small,
    )


def _columns(rows: Sequence[tuple[T, ...]], count: int) -> list[tuple[T, ...]]:
    """Return the columns of a table; empty ones for a table without rows."""
    return list(zip(*rows, strict=True)) if rows else [()] * count


def _kernel(tried: Block, same: Block, *, exact: bool) -> tuple[float, float, int]:
    """Return the norms of the difference and of ``same``, and their elements."""
    difference = same if exact else tried - same
    found, size = finite_norm(difference), finite_norm(same)
    if found is None or size is None:
        difference = tried - same
        known = np.isfinite(tried) & np.isfinite(same)
        same = same[known]
        found, size = norm(difference[known]), norm(same)
    return 0.0 if exact else found, size, same.size


def _range(
    wanted: Block, found: Block, normal: float, *, finite: bool
) -> tuple[float, int, int, int]:
    """Return the largest magnitude; the numbers of finite, lost, small elements.

    Args:
        wanted: The reference.
        found: The result in the converted program.
        normal: The smallest normal number.
        finite: Whether all elements are known to be finite.
    """
    lost = 0
    if not finite:
        known = np.isfinite(wanted)
        lost = int(np.count_nonzero(known & ~np.isfinite(found)))
        wanted, found = wanted[known], found[known]
    if not wanted.size:
        return 0.0, 0, lost, 0
    largest = max(float(wanted.max()), -float(wanted.min()))
    small = 0
    if normal:
        made = np.abs(found)
        if not float(made.min()) >= normal:  # a NaN is not
            small = int(np.count_nonzero((made < normal) & (wanted != 0)))
    return largest, wanted.size, lost, small
