"""Faults: ops that compute something else than the original's, apart from rounding.

A converted op and the original's op get the same operands, rounded to the dtypes that
the converted one reads; the original's computes in the reference's dtype, products of
16-bit numbers in float32, where they are exact. They differ by the roundings of the
converted op: of its result once, and inside its kernel. An error far above that is a
fault. It is found even if no output shows it: a factor on the operand of a
normalisation changes nothing after it.

The effect of roundings inside on the result is measured, where it matters: the
original's op is run again with its operands moved by a unit roundoff each.
"""

from collections.abc import Sequence
from math import hypot, inf, sqrt

import numpy as np

from amprewrite.dtypes import FORMATS
from amprewrite.dtypes.formats import format_of
from amprewrite.measure.runs import Block, OpSample, blocks
from amprewrite.plan import Decision
from amprewrite.verify.bounds import unit_roundoff
from amprewrite.verify.metrics import is_finite, norm, ratio
from amprewrite.verify.ops.compared import Compared, compared

ROUNDINGS = 4.0
"""Unit roundoffs that a result may be off.

One rounding is at most one; low kernels that round inside have 1.2 to 3.1 times the
error of one, in the root mean square about 0.4 unit roundoffs (``rounds_inside`` in the
table of ops).
"""

LEAST = 2.0**-10
"""Relative error below which nothing counts as a fault.

Examples are sums in another order, and products that a device computes in TF32, with
unit roundoff 2**-11.
"""

LEAST_CONTRACTED = 2.0**-6
"""The same for contractions: TPUs multiply float32 in bfloat16 by default."""

MOVED = 8.0
"""Allowed multiple of the measured effect of moved operands.

That is the change of a result when operands move by a unit roundoff.
"""

DRAWS = 2
"""Number of random moves of the operands; the larger effect counts."""


def kernel_error(
    sample: OpSample, decision: Decision, rows: Sequence[Compared] | None = None
) -> tuple[float, float] | None:
    """Return the error of an op against the original's on the same operands.

    Args:
        sample: The op.
        decision: Its dtypes.
        rows: Its results, compared; None to compare them here.

    Returns:
        The relative error of the result that exceeds its explained error the most, and
        that explained error; None if the original's op cannot run on these operands.
    """
    same = sample.kernel[1]
    if same is None:
        return None
    worst, found = 0.0, (0.0, 0.0)
    if rows is None:
        rows = compared(sample, [0.0] * len(same))
    for index, row in enumerate(rows):
        limit = _rounding(decision, sample, row.same, row.known)
        if row.kernel > limit:
            limit = max(limit, MOVED * _moved(sample, decision, index))
        if ratio(row.kernel, limit) >= worst:
            worst = ratio(row.kernel, limit)
            found = ratio(row.kernel, row.same), ratio(limit, row.same)
    return found


def _rounding(decision: Decision, sample: OpSample, size: float, count: int) -> float:
    """Return the norm of the error that the roundings of a result explain."""
    found = floats_of(decision, sample)
    least = LEAST_CONTRACTED if sample.contracts else LEAST
    unit = max((unit_roundoff(dtype) for dtype in found), default=0.0)
    tiny = max((_smallest(dtype) for dtype in found), default=0.0)
    return hypot(max(ROUNDINGS * unit, least) * size, sqrt(count) * tiny)


def _moved(sample: OpSample, decision: Decision, index: int) -> float:
    """Return the norm of a result's change when operands move by a unit roundoff.

    It is infinite, for unknown, if the op cannot be run again or is random.
    """
    unit = max(
        (unit_roundoff(dtype) for dtype in floats_of(decision, sample)), default=0.0
    )
    largest, (made, same) = 0.0, sample.kernel
    for draw in range(DRAWS):
        found = None if sample.again is None else sample.again(unit, draw)
        if found is None or same is None:
            return inf
        held = made[index], same[index], found[index]
        largest = max(largest, hypot(*(_change(*rows) for rows in blocks(*held))))
    return largest * sqrt(max(1.0, sample.length))


def _change(made: Block, same: Block, moved: Block) -> float:
    """Return the norm of the change of ``same``, where it and ``made`` are finite."""
    with np.errstate(invalid="ignore"):  # infinities that stay have no distance
        change = moved - same
    if not is_finite(change) or not is_finite(made):
        change = change[np.isfinite(made) & np.isfinite(same)]
    return norm(change) if is_finite(change) else inf


def floats_of(decision: Decision, sample: OpSample) -> list[str]:
    """Return the float dtypes that an op computes with."""
    dtypes = (*decision.operands, *decision.results, decision.precision, sample.format)
    kinds = ("float", "complex")
    return [d for d in dtypes if d in FORMATS and FORMATS[d].kind in kinds]


def _smallest(dtype: str) -> float:
    """Return the smallest positive number, to which smaller ones round."""
    return float(format_of(dtype).smallest_subnormal)
