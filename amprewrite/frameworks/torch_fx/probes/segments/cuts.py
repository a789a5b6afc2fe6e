"""Cut a sequence of ops into segments, so that few values are kept at a time.

A backward pass keeps the values of all ops. In segments it keeps those of one, which
are computed again, and those that are alive at the cuts.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import isqrt

WINDOW = 4
"""A cut is moved by up to this part of a segment, to where few bytes are alive."""


def cuts(kept: Sequence[int], alive: Sequence[int], limit: int) -> list[int]:
    """Return the indices of the ops before which a sequence is cut.

    Args:
        kept: Bytes that each op keeps for the backward pass.
        alive: Bytes of the values that are alive before each op.
        limit: Bytes that may be kept at a time.

    Returns:
        Ascending; none if nothing has to be cut. The fewest that are within the limit;
        if there are none, those with which the fewest bytes are kept.
    """
    sums = [0, *accumulate(kept)]
    fewest, best = sums[-1], list[int]()
    for count in range(2, isqrt(len(kept)) + 2):
        if fewest <= limit:
            break
        found = _near(sums, alive, count)
        bounds = [0, *found, len(kept)]
        parts = pairwise(bounds)
        largest = max(sums[two] - sums[one] for one, two in parts)
        held = largest + sum(alive[index] for index in found)
        if held < fewest:
            fewest, best = held, found
    return best


def _near(sums: Sequence[int], alive: Sequence[int], count: int) -> list[int]:
    """Return the cuts into ``count`` segments that keep about as much each."""
    size, found = sums[-1] / count, set[int]()
    for number in range(1, count):
        off = {
            index: abs(sums[index] - size * number) for index in range(1, len(alive))
        }
        near = [(alive[i], far, i) for i, far in off.items() if far <= size / WINDOW]
        found |= {min(near)[-1]} if near else set()
    return sorted(found)
