"""Blame: the error that each op makes itself, apart from that of its operands.

The own error of an op is that of the converted op on the reference's operands, rounded
to the dtypes that it reads. It includes the rounding of those operands, as the op
amplifies it, so that a norm of a large offset in low precision is found although its
kernel is right. An op without any rounding has none.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from amprewrite.measure.runs import Array
from amprewrite.measure.samples import OpSample
from amprewrite.plan import Decision
from amprewrite.verify.faults import kernel_error
from amprewrite.verify.metrics import relative_l2
from amprewrite.verify.op_errors import OpError


def op_error(sample: OpSample, decision: Decision) -> OpError:
    """Return the errors of one op, the largest among its results."""
    alone = 0.0 if sample.exact else _worst(sample.alone, sample.reference)
    kernel, explained = kernel_error(sample, decision) or (None, 0.0)
    return OpError(
        op=decision.op,
        canonical=decision.canonical,
        native=decision.native,
        path=decision.path,
        source=decision.source,
        precision=decision.precision,
        own=alone,
        accumulated=_worst(sample.actual, sample.reference),
        nonfinite=sum(map(_lost, sample.actual, sample.reference)),
        kernel=kernel,
        explained=explained,
        inserted=sample.decision is not None,
    )


def _worst(found: Iterable[Array], wanted: Iterable[Array]) -> float:
    return max(map(relative_l2, found, wanted), default=0.0)


def _lost(found: Array, wanted: Array) -> int:
    """Return the number of elements that are finite in the reference alone."""
    return int(np.count_nonzero(np.isfinite(wanted) & ~np.isfinite(found)))


class Blame:
    """Collector of op samples that keeps their errors.

    A second sample of an op, after a walk that was interrupted, replaces the first.
    """

    def __init__(self, decisions: Mapping[str, Decision]) -> None:
        """Store the decisions, by op name."""
        self.decisions = decisions
        self.found: dict[str, OpError] = {}

    def __call__(self, sample: OpSample) -> None:
        """Store the errors of one op, not its values."""
        decision = sample.decision or self.decisions[sample.op]
        self.found[sample.op] = op_error(sample, decision)

    def errors(self, shares: Mapping[str, float]) -> tuple[OpError, ...]:
        """Return the errors of each op with float results, in program order.

        Args:
            shares: Share of each op in the predicted squared error; empty if unknown.
        """
        found = self.found.values()
        if not shares:
            return tuple(found)
        ops = (op if op.inserted else _with(op, shares) for op in found)
        return tuple(ops)


def _with(op: OpError, shares: Mapping[str, float]) -> OpError:
    return replace(op, share=shares.get(op.op, 0.0))
