"""Range of the values of an op, in the format that stores them."""

from dataclasses import dataclass
from math import log2

import numpy as np

from amprewrite.dtypes import FORMATS
from amprewrite.measure.runs import Array
from amprewrite.measure.samples import OpSample
from amprewrite.plan import Decision


@dataclass(frozen=True, slots=True)
class Range:
    """Range of one float result.

    Attributes:
        dtype: Name of the format that stores it; empty if the op makes no float.
        largest: Largest finite magnitude in the reference.
        headroom: Octaves between ``largest`` and the largest number of the format;
            negative if it overflows. None for a result that is zero.
        underflow: Share of the elements that are no zero in the reference, and are zero
            or subnormal in the format.
        lost: Number of elements that are not finite here and are in the reference.
    """

    dtype: str = ""
    largest: float = 0.0
    headroom: float | None = None
    underflow: float = 0.0
    lost: int = 0


def range_of(sample: OpSample, decision: Decision) -> Range:
    """Return the range of the result with the least headroom, and sums over all."""
    if sample.whole:
        pairs = [(sample.whole[0], sample.whole[1])]
    else:
        pairs = list(zip(sample.reference, sample.actual, strict=True))
    kinds = ("float", "complex")
    dtypes = [d for d in decision.results if d in FORMATS and FORMATS[d].kind in kinds]
    if len(dtypes) != len(pairs):  # a body leaves one of several results
        dtypes = [(dtypes or [decision.precision])[0]] * len(pairs)
    found = [_range(dtype, *pair) for dtype, pair in zip(dtypes, pairs, strict=True)]
    if not found:
        return Range()
    least = min(found, key=lambda r: float("inf") if r.headroom is None else r.headroom)
    underflow = float(max(one.underflow for one in found))
    lost = sum(one.lost for one in found)
    return Range(least.dtype, least.largest, least.headroom, underflow, lost)


def _range(dtype: str, wanted: Array, found: Array) -> Range:
    known = np.isfinite(wanted)
    sizes = np.abs(wanted) if known.all() else np.abs(wanted[known])
    largest = float(np.max(sizes, initial=0.0))
    lost = int(np.count_nonzero(known & ~np.isfinite(found)))
    if dtype not in FORMATS or FORMATS[dtype].kind not in ("float", "complex"):
        return Range(dtype, largest, None, 0.0, lost)
    form = FORMATS[dtype]
    headroom = log2(form.max / largest) if largest else None
    made = np.abs(found) if known.all() else np.abs(found[known])
    small = np.count_nonzero((made < form.smallest_normal) & (sizes > 0))
    return Range(dtype, largest, headroom, small / max(1, sizes.size), lost)
