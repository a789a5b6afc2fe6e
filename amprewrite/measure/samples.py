"""Samples of single ops, run in full precision and as converted."""

from collections.abc import Callable
from dataclasses import dataclass

from amprewrite.measure.values.blocks import Held
from amprewrite.plan import Decision


@dataclass(frozen=True)
class OpSample:
    """The float results of one op, run in three ways.

    They are valid while the sample is observed: the program may write to them later.

    Attributes:
        op: Its name in the plan.
        reference: In the reference's dtype, on the reference's operands.
        actual: In the converted program.
        alone: Results of the converted op alone, on the reference's operands rounded to
            the dtypes that it reads; those of the reference for an op that moves values
            in memory that stays where it is, in both forms alike.
        exact: Whether ``alone`` has no rounding of its own, so that it equals ``same``.
        same: Results of the original's op on the same rounded operands, in the
            reference's dtype, or in one that is as good as exact for them; None if it
            does not run on them.
        again: Function that runs it again with every float operand moved up or down at
            random by a relative amount, and with other random numbers, by the number of
            a draw; None if it does not run again. It is valid while the sample is
            observed.
        contracts: Whether the op multiplies and sums.
        length: Number of elements that it reads for each that it makes.
        format: The 8-bit format to which the op rounds its operands itself; empty if
            it does not.
        decision: Decision of an inserted node; None for an op of the plan.
        whole: Source and value of an inserted node before values beyond the range of
            its format were left out; empty for an op of the plan.
        readers: Names of the ops that read an inserted node; empty for an op of the
            plan.
        checked: Results of the original's op on the operands that the converted op had
            in the program, for ``actual`` to be compared with; then ``again`` runs it
            on these, and ``alone`` is ``same``, rounded. Empty where ``alone`` is
            compared with ``same``.
    """

    op: str
    reference: tuple[Held, ...]
    actual: tuple[Held, ...]
    alone: tuple[Held, ...]
    exact: bool
    same: tuple[Held, ...] | None = None
    again: Callable[[float, int], tuple[Held, ...] | None] | None = None
    contracts: bool = False
    length: float = 1.0
    format: str = ""
    decision: Decision | None = None
    whole: tuple[Held, ...] = ()
    readers: tuple[str, ...] = ()
    checked: tuple[Held, ...] = ()

    @property
    def kernel(self) -> tuple[tuple[Held, ...], tuple[Held, ...] | None]:
        """Results of the converted op, and the original's on the same operands."""
        if self.checked:
            return self.actual, self.checked
        return self.alone, self.same


Observe = Callable[[OpSample], None]
"""Consumer of samples, called once for each in program order; none is kept."""
