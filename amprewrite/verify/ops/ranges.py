"""Range of the values of an op, in the format that stores them."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2

from amprewrite.dtypes import FORMATS
from amprewrite.measure.runs import OpSample
from amprewrite.plan import Decision
from amprewrite.verify.ops.compared import Compared, compared


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


KINDS = ("float", "complex")
"""Kinds of formats that have a range here."""


def formats_of(sample: OpSample, decision: Decision) -> list[str]:
    """Return the name of the format that stores each result."""
    dtypes = [d for d in decision.results if d in FORMATS and FORMATS[d].kind in KINDS]
    count = len(sample.reference)
    if len(dtypes) != count:  # a body leaves one of several results
        return [(dtypes or [decision.precision])[0]] * count
    return dtypes


def smallest_normals(sample: OpSample, decision: Decision) -> list[float]:
    """Return the smallest normal number of each of those formats; 0 for no float."""
    return [
        float(FORMATS[dtype].smallest_normal) if _is_float(dtype) else 0.0
        for dtype in formats_of(sample, decision)
    ]


def range_of(
    sample: OpSample, decision: Decision, rows: Sequence[Compared] | None = None
) -> Range:
    """Return the range of the result with the least headroom, and sums over all.

    Args:
        sample: The op.
        decision: Its dtypes.
        rows: Its results, compared; None to compare them here.
    """
    if rows is None:
        rows = compared(sample, smallest_normals(sample, decision))
    pairs = zip(formats_of(sample, decision), rows, strict=True)
    found = [_range(dtype, row) for dtype, row in pairs]
    if not found:
        return Range()
    least = min(found, key=lambda r: float("inf") if r.headroom is None else r.headroom)
    underflow = float(max(one.underflow for one in found))
    lost = sum(one.lost for one in found)
    return Range(least.dtype, least.largest, least.headroom, underflow, lost)


def _range(dtype: str, row: Compared) -> Range:
    if not _is_float(dtype):
        return Range(dtype, row.largest, None, 0.0, row.lost)
    headroom = log2(FORMATS[dtype].max / row.largest) if row.largest else None
    underflow = row.small / max(1, row.finite)
    return Range(dtype, row.largest, headroom, underflow, row.lost)


def _is_float(dtype: str) -> bool:
    return dtype in FORMATS and FORMATS[dtype].kind in KINDS
