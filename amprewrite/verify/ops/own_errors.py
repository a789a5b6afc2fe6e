"""The error that each op makes itself, apart from that of its operands.

The own error of an op is that of the converted op on the reference's operands, rounded
to the dtypes that it reads. It includes the rounding of those operands, as the op
amplifies it, so that a norm of a large offset in low precision is found although its
kernel is right. An op without any rounding has none.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from amprewrite.ir import ProgramGraph
from amprewrite.measure.runs import OpSample
from amprewrite.plan import Decision
from amprewrite.verify.bounds import unit_roundoff
from amprewrite.verify.metrics import ratio
from amprewrite.verify.ops.compared import compared
from amprewrite.verify.ops.faults import floats_of, kernel_error
from amprewrite.verify.ops.op_errors import OpError
from amprewrite.verify.ops.ranges import range_of, smallest_normals


def op_error(sample: OpSample, decision: Decision) -> OpError:
    """Return the errors of one op, the largest among its results."""
    rows = compared(sample, smallest_normals(sample, decision))
    kernel, explained = kernel_error(sample, decision, rows) or (None, 0.0)
    found = range_of(sample, decision, rows)
    return OpError(
        op=decision.op,
        canonical=decision.canonical,
        native=decision.native,
        path=decision.path,
        source=decision.source,
        precision=decision.precision,
        own=max((ratio(row.own, row.size) for row in rows), default=0.0),
        accumulated=max(
            (ratio(row.accumulated, row.size) for row in rows), default=0.0
        ),
        nonfinite=found.lost,
        kernel=kernel,
        explained=explained,
        inserted=sample.decision is not None,
        dtype=found.dtype,
        largest=found.largest,
        headroom=found.headroom,
        underflow=found.underflow,
        unit=max(map(unit_roundoff, floats_of(decision, sample)), default=0.0),
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
