"""Accumulators and derivatives of contractions: the roundings that a plan fixes."""

from dataclasses import dataclass

from amprewrite.ir import Op
from amprewrite.passes.analysis.context import Placed
from amprewrite.plan.hardware.kernels import OPERAND, Kernels
from amprewrite.policy import OpClass, Policy, Reason
from amprewrite.policy.match import Match


@dataclass(frozen=True, slots=True)
class Contracted:
    """Accumulator and derivative dtypes of one contraction.

    The attributes are those of :class:`amprewrite.plan.Decision`.
    """

    accumulator: str = ""
    derivative: str = ""
    derivative_accumulator: str = ""


NO_CONTRACTION = Contracted()
"""The dtypes of an op that contracts nothing."""


def contracted(
    op: Op, found: Match, placed: Placed, policy: Policy, kernels: Kernels
) -> Contracted:
    """Return the accumulator and derivative dtypes of ``op``; empty for other ops.

    A contraction that sums nothing runs in full precision, but its derivatives sum over
    all its repeats: where the framework allows it, they are low.

    Args:
        op: The op.
        found: Its class.
        placed: Its placement.
        policy: The policy.
        kernels: Accumulator dtypes of low contractions on the device.
    """
    low, full = policy.low, policy.full
    untouched = found.op_class is OpClass.KEEP or not low
    contracts = op.accumulates or op.contracted is not None
    if untouched or not contracts or placed.results[0] not in (low, full):
        return NO_CONTRACTION
    if not op.accumulates:  # the framework differentiates it as it runs
        return Contracted(placed.results[0], placed.precision, OPERAND)
    alone = found.reason is Reason.OUTER_PRODUCT
    derivative = low if alone else placed.precision
    sums = {"low": low, "full": full, "operand": OPERAND}[
        kernels.derivative_accumulator
    ]
    if derivative != low:
        sums = OPERAND
    wide = kernels.accumulators and placed.precision == low
    return Contracted(full if wide else placed.results[0], derivative, sums)
