"""Ops to keep full so that no value leaves the range of the format that stores it.

The largest magnitude of every value is known from the reference, and the formats in
which ops read and make it from the plan. So such an op is found although the values
that reach it in the converted program are not finite already.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import isinf

from amprewrite.dtypes import FORMATS
from amprewrite.ir import Op, ProgramGraph
from amprewrite.plan import Plan
from amprewrite.policy import OpClass
from amprewrite.verify.ops.op_errors import OpError


def overflowing(
    rows: Sequence[OpError], plan: Plan, graph: ProgramGraph
) -> Mapping[str, str]:
    """Return the ops that make values that are not finite, with the way, in order.

    They make a value beyond the format of it, read one beyond the format of that, or
    make others for no reason of range. An op that runs in full, or moves values, has
    them full once the ops that make them are, and is none of these. An inserted cast
    that overflows, or a stored weight, counts as its readers, if they are known.

    Args:
        rows: Errors of each op, with ranges, in program order.
        plan: The plan of the converted program.
        graph: The program.
    """
    by_op = {row.op: row for row in rows}
    handed = dict[str, str]()
    for row in rows:
        if row.overflows:
            handed.update(dict.fromkeys(_readers(row, by_op), _hands(row)))
    found = {row.op: _makes(row) for row in rows if row.overflows and not row.readers}
    sizes = _Sizes(by_op, plan, graph)
    for op in graph.ops:
        row, decision = by_op.get(op.name), plan.by_op[op.name]
        if row is None or decision.op_class == OpClass.FOLLOW:
            continue
        if not row.nonfinite and not isinf(row.own):
            continue
        reads = handed.get(op.name) or sizes.read_beyond(op)
        if decision.precision == plan.low:
            beyond = row.headroom is not None and row.headroom < 0.0
            way = "" if beyond else reads
            if way or beyond or isinf(row.own):
                found[op.name] = way or _makes(row)
        elif isinf(row.own) and not reads:
            found[op.name] = _makes(row)
    return found


class _Sizes:
    """The largest magnitude of each value, and the formats that it passes.

    Args:
        by_op: Rows of the report.
        plan: The plan of the converted program.
        graph: The program.
    """

    def __init__(
        self, by_op: Mapping[str, OpError], plan: Plan, graph: ProgramGraph
    ) -> None:
        self.decisions = plan.by_op
        self.largest: dict[str, float] = {}
        self.stored: dict[str, str] = {}
        for op in graph.ops:
            row = by_op.get(op.name)
            if row is not None:
                dtypes = plan.by_op[op.name].results
                self.largest.update(dict.fromkeys(op.results, row.largest))
                self.stored.update(zip(op.results, dtypes, strict=False))

    def read_beyond(self, op: Op) -> str:
        """Return the way in which an op reads a value beyond a format; empty if not.

        The format is that in which it is stored, or read. Casts of masks saturate.
        """
        dtypes = self.decisions[op.name].operands
        for index, (name, read) in enumerate(zip(op.operands, dtypes, strict=False)):
            size = self.largest.get(name, 0.0)
            for dtype in (self.stored.get(name, ""), read):
                beyond = dtype in FORMATS and size > FORMATS[dtype].max
                if beyond and index not in op.masks:
                    return (
                        f"reads %{name}, of which the largest is {size:.3g}, in {dtype}"
                    )
        return ""


def _makes(row: OpError) -> str:
    room = "" if row.headroom is None else f", {row.headroom:+.1f} octaves left"
    return (
        f"makes {row.nonfinite} values that are not finite: its largest is "
        f"{row.largest:.3g}{room} in {row.dtype or row.precision}"
    )


def _hands(row: OpError) -> str:
    return (
        f"reads {row.nonfinite} values that are not finite: the largest is "
        f"{row.largest:.3g}, and it reads them in {row.dtype} ({row.op})"
    )


def _readers(row: OpError, by_op: Mapping[str, OpError]) -> Iterator[str]:
    """Yield the ops that read an inserted node, directly or by others."""
    for name in row.readers:
        reader = by_op.get(name)
        if reader is not None and reader.inserted:
            yield from _readers(reader, by_op)
        else:
            yield name
