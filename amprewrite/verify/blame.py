"""Which op makes the error: its own, apart from what it was handed.

The own error of an op is that of the converted op on the reference's operands, rounded
to the dtypes that it reads. It holds the rounding of those operands, as the op
amplifies it, so a norm that reads a large offset in low precision is found although its
kernel is right. An op that gives what it would give without rounding has none.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isnan

import numpy as np

from amprewrite.frameworks.base import Array, OpSample
from amprewrite.plan import Decision
from amprewrite.verify.metrics import relative_l2


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

    def __str__(self) -> str:
        """Return one line: the op, its errors and its place."""
        place = ", ".join(part for part in (self.path, self.source) if part)
        return (
            f"{self.op} ({self.native}, {self.precision}) own error {self.own:.2g}, "
            f"accumulated {self.accumulated:.2g}{f' at {place}' if place else ''}"
        )


def op_error(sample: OpSample, decision: Decision) -> OpError:
    """Return the errors of one op, the largest among its results."""
    alone = 0.0 if sample.exact else _worst(sample.alone, sample.reference)
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
        self.found[sample.op] = op_error(sample, self.decisions[sample.op])

    @property
    def errors(self) -> tuple[OpError, ...]:
        """One for each op with float results, in program order."""
        return tuple(self.found.values())


def worst(ops: Iterable[OpError], count: int) -> tuple[OpError, ...]:
    """Return the ops with the largest own errors, the first in the program first."""

    def rank(op: OpError) -> float:
        return float("-inf") if isnan(op.own) else -op.own

    return tuple(sorted(ops, key=rank)[:count])
