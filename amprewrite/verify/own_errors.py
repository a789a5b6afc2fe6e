"""The error that each op makes itself, apart from that of its operands, and faults.

The own error of an op is that of the converted op on the reference's operands, rounded
to the dtypes that it reads. It includes the rounding of those operands, as the op
amplifies it, so that a norm of a large offset in low precision is found although its
kernel is right. An op without any rounding has none.

A fault is an op that computes something else than the original's. Both get the same
operands, rounded to the dtypes that the converted one reads; the original's computes in
the reference's dtype, products of 16-bit numbers in float32, where they are exact. They
differ by the roundings of the converted op: of its result once, and inside its kernel.
An error far above that is a fault. It is found even if no output shows it: a factor on
the operand of a normalisation changes nothing after it. The effect of roundings inside
on the result is measured, where it matters: the original's op is run again with its
operands moved by a unit roundoff each.

The values of an op's results are read once, block by block. Where the sum of squares of
a block is finite, so are its elements, and none of them is tested by itself. This pass
is the time that ``verify`` spends beside the ops of the models: it is written for few
passes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot, inf, log2, sqrt
from typing import TypeVar

import numpy as np

from amprewrite.dtypes import FORMATS
from amprewrite.dtypes.formats import format_of
from amprewrite.ir import ProgramGraph
from amprewrite.measure.runs import Block, OpSample, blocks
from amprewrite.plan import Decision
from amprewrite.verify.bounds import unit_roundoff
from amprewrite.verify.metrics import block_parts, finite_norm, is_finite, norm, ratio
from amprewrite.verify.rows import OpError, op_fields

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


KINDS = ("float", "complex")
"""Kinds of formats that have a range here."""


def formats_of(sample: OpSample, decision: Decision) -> list[str]:
    """Return the name of the format that stores each result."""
    dtypes = [*filter(_is_float, decision.results)]
    count = len(sample.reference)
    if len(dtypes) != count:  # a body leaves one of several results
        return [(dtypes or [decision.precision])[0]] * count
    return dtypes


def _is_float(dtype: str) -> bool:
    return dtype in FORMATS and FORMATS[dtype].kind in KINDS


def _smallest_normal(dtype: str) -> float:
    """Return the smallest normal number of a format; 0 for no float."""
    return float(FORMATS[dtype].smallest_normal) if _is_float(dtype) else 0.0


def _headroom(dtype: str, largest: float) -> float:
    """Return the octaves up to the end of a format; infinite if there is no end."""
    ends = bool(largest) and _is_float(dtype)
    return log2(FORMATS[dtype].max / largest) if ends else inf


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
    sample: OpSample, decision: Decision, rows: Sequence[Compared]
) -> tuple[float, float] | None:
    """Return the error of an op against the original's on the same operands.

    Args:
        sample: The op.
        decision: Its dtypes.
        rows: Its results, compared.

    Returns:
        The relative error of the result that exceeds its explained error the most, and
        that explained error; None if the original's op cannot run on these operands.
    """
    if sample.kernel[1] is None:
        return None
    worst, found = 0.0, (0.0, 0.0)
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
    least = LEAST_CONTRACTED if sample.contracts else LEAST
    relative = max(ROUNDINGS * _unit(decision, sample), least)
    formats = map(format_of, floats_of(decision, sample))
    tiny = max((float(one.smallest_subnormal) for one in formats), default=0.0)
    return hypot(relative * size, sqrt(count) * tiny)


def _moved(sample: OpSample, decision: Decision, index: int) -> float:
    """Return the norm of a result's change when operands move by a unit roundoff.

    It is infinite, for unknown, if the op cannot be run again or is random.
    """
    unit, largest, (made, same) = _unit(decision, sample), 0.0, sample.kernel
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
    return [*filter(_is_float, dtypes)]


def _unit(decision: Decision, sample: OpSample) -> float:
    """Return the largest unit roundoff of these."""
    return max(map(unit_roundoff, floats_of(decision, sample)), default=0.0)


def op_error(sample: OpSample, decision: Decision) -> OpError:
    """Return the errors of one op, the largest among its results.

    Its range is that of the result with the least headroom.
    """
    formats = formats_of(sample, decision)
    rows = compared(sample, [*map(_smallest_normal, formats)])
    kernel, explained = kernel_error(sample, decision, rows) or (None, 0.0)
    sizes = zip(formats, (row.largest for row in rows), strict=True)
    dtype, largest = min(sizes, key=lambda pair: _headroom(*pair), default=("", 0.0))
    headroom = _headroom(dtype, largest)
    return OpError(
        *op_fields(decision),
        own=max((ratio(row.own, row.size) for row in rows), default=0.0),
        accumulated=max(
            (ratio(row.accumulated, row.size) for row in rows), default=0.0
        ),
        nonfinite=sum(row.lost for row in rows),
        kernel=kernel,
        explained=explained,
        inserted=sample.decision is not None,
        dtype=dtype,
        largest=largest,
        headroom=None if headroom == inf else headroom,
        underflow=max((row.small / max(1, row.finite) for row in rows), default=0.0),
        unit=_unit(decision, sample),
        readers=sample.readers,
    )


class OwnErrors:
    """Collector of op samples that keeps their errors.

    A second sample of an op, after a walk that was interrupted, replaces the first.
    """

    def __init__(self, decisions: Mapping[str, Decision]) -> None:
        """Store the decisions, by op name."""
        self.decisions = decisions
        self.found: dict[str, OpError] = {}

    def begin(self, decisions: Mapping[str, Decision]) -> None:
        """Begin a walk over a program with these decisions."""
        self.decisions = decisions
        self.found.clear()

    def __call__(self, sample: OpSample) -> None:
        """Store the errors of one op, not its values."""
        decision = sample.decision or self.decisions[sample.op]
        self.found[sample.op] = op_error(sample, decision)

    def errors(
        self, shares: Mapping[str, float], graph: ProgramGraph | None = None
    ) -> tuple[OpError, ...]:
        """Return the errors of each op with float results, in program order.

        Args:
            shares: Share of each op in the predicted squared error; empty if unknown.
            graph: The program, for the errors that arrive at ops.
        """
        arrived = {} if graph is None else dict(_arrived(graph, self.found))
        return tuple(
            op
            if op.inserted
            else replace(
                op,
                share=shares.get(op.op, 0.0) if shares else None,
                arrived=arrived.get(op.op, 0.0),
            )
            for op in self.found.values()
        )


def _arrived(
    graph: ProgramGraph, found: Mapping[str, OpError]
) -> Iterator[tuple[str, float]]:
    """Yield each op with the largest accumulated error of the values that it reads.

    An op that was not compared, such as a boundary of a body, passes it on.
    """
    errors: dict[str, float] = {}
    for op in graph.ops:
        arrived = max((errors.get(name, 0.0) for name in op.operands), default=0.0)
        yield op.name, arrived
        made = found[op.name].accumulated if op.name in found else arrived
        errors.update(dict.fromkeys(op.results, made))
