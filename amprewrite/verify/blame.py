"""Which op makes the error: its own, apart from what it was handed.

The own error of an op is that of the converted op on the reference's operands, rounded
to the dtypes that it reads. It holds the rounding of those operands, as the op
amplifies it, so a norm that reads a large offset in low precision is found although its
kernel is right. An op that gives what it would give without rounding has none.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import isinf, isnan

import numpy as np

from amprewrite.frameworks.base import Array, OpSample
from amprewrite.plan import Decision
from amprewrite.verify.faults import kernel_error
from amprewrite.verify.metrics import ratio, relative_l2


@dataclass(frozen=True, slots=True)
class OpError:
    """The error of one op; relative, in the Euclidean norm, of its worst result.

    Attributes:
        op: Its name in the plan.
        canonical: Its name in policies.
        native: Its name in the framework.
        path: Module path.
        source: ``file:line`` of the user's code.
        precision: Dtype that it computes in.
        own: Error that it makes by itself; 0 if it rounds nothing.
        accumulated: Error of its result in the converted program.
        nonfinite: Elements that are not finite in the converted program and are in
            the reference.
        kernel: Error of the op against the original's on the same rounded operands;
            None if the original's does not run on them.
        explained: What rounding explains of that; see :mod:`amprewrite.verify.faults`.
        inserted: Whether it is no op of the model: a cast that the plan put in, or a
            weight that is stored anew.
        share: Part of the predicted squared error of the outputs that its roundings
            make; None if that was not predicted.
    """

    op: str
    canonical: str
    native: str
    path: str
    source: str
    precision: str
    own: float
    accumulated: float
    nonfinite: int
    kernel: float | None = None
    explained: float = 0.0
    inserted: bool = False
    share: float | None = None

    @property
    def is_fault(self) -> bool:
        """Whether it does something else than the original's op, rounding aside."""
        return self.kernel is not None and self.kernel > self.explained

    def __str__(self) -> str:
        """Return one line: the op, its errors and its place."""
        share = "" if self.share is None else f"{self.share:.0%} of the error, "
        return (
            f"{self.op} ({self.native}, {self.precision}) {share}own error "
            f"{self.own:.2g}, accumulated {self.accumulated:.2g}{self._place}"
        )

    @property
    def fault(self) -> str:
        """A line that says how far it is from what it stands for."""
        stands_for = "the value handed on" if self.inserted else "the original's op"
        return (
            f"{'inserted ' if self.inserted else ''}op {self.op} ({self.native}, "
            f"{self.precision}){self._place}: differs from {stands_for} by "
            f"{self.kernel or 0.0:.2g} on the same operands; rounding explains "
            f"{self.explained:.2g}"
        )

    @property
    def _place(self) -> str:
        place = ", ".join(part for part in (self.path, self.source) if part)
        return f" at {place}" if place else ""


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
    """Takes the samples of a walk and keeps their errors.

    A sample of an op that was seen before, in a walk that broke off, replaces it.
    """

    def __init__(self, decisions: Mapping[str, Decision]) -> None:
        """Remember what each op is."""
        self.decisions = decisions
        self.found: dict[str, OpError] = {}

    def __call__(self, sample: OpSample) -> None:
        """Keep the errors of one op, not its values."""
        decision = sample.decision or self.decisions[sample.op]
        self.found[sample.op] = op_error(sample, decision)

    def errors(self, shares: Mapping[str, float]) -> tuple[OpError, ...]:
        """Return one for each op with float results, in program order.

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


def worst(ops: Iterable[OpError], count: int) -> tuple[OpError, ...]:
    """Return the ops that matter most, the first in the program first among equals.

    Faults come first, by how far they are beyond rounding. Then what made values that
    are not finite; then the ops by their share of the predicted error of the outputs,
    for an op with a large error of its own may have no effect on them. Where no share
    is known their own errors count. An inserted cast that is right is none of them: its
    rounding belongs to the ops that read it.
    """

    def rank(op: OpError) -> tuple[float, ...]:
        beyond = -ratio(op.kernel or 0.0, op.explained) if op.is_fault else 0.0
        own = float("-inf") if isnan(op.own) else -op.own
        return beyond, own if isinf(own) else 0.0, -(op.share or 0.0), own

    counted = (op for op in ops if op.is_fault or not op.inserted)
    return tuple(sorted(counted, key=rank)[:count])
