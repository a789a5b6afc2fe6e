"""The error of one op as plain data, and which ops matter most."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf, isinf, isnan


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

    @property
    def excess(self) -> float:
        """Multiple of what rounding explains that a fault differs by; 0 for others."""
        if self.kernel is None or not self.is_fault:
            return 0.0
        return self.kernel / self.explained if self.explained else inf

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


def worst(ops: Iterable[OpError], count: int) -> tuple[OpError, ...]:
    """Return the ops that matter most, the first in the program first among equals.

    Faults come first, by how far they are beyond rounding. Then what made values that
    are not finite; then the ops by their share of the predicted error of the outputs,
    for an op with a large error of its own may have no effect on them. Where no share
    is known their own errors count. An inserted cast that is right is none of them: its
    rounding belongs to the ops that read it.
    """

    def rank(op: OpError) -> tuple[float, ...]:
        own = float("-inf") if isnan(op.own) else -op.own
        return -op.excess, own if isinf(own) else 0.0, -(op.share or 0.0), own

    counted = (op for op in ops if op.is_fault or not op.inserted)
    return tuple(sorted(counted, key=rank)[:count])
