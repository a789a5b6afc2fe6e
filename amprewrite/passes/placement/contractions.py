"""How contractions sum and are differentiated: the roundings that a plan fixes."""

from dataclasses import dataclass

from amprewrite.ir import Op
from amprewrite.passes.analysis.context import Placed
from amprewrite.plan.hardware.kernels import OPERAND, Kernels
from amprewrite.policy import OpClass, Policy, Reason
from amprewrite.policy.match import Match


@dataclass(frozen=True, slots=True)
class Contracted:
    """How one contraction sums and is differentiated.

    The attributes are those of :class:`amprewrite.plan.Decision`.
    """

    accumulator: str = ""
    derivative: str = ""
    derivative_accumulator: str = ""


def contracted(
    op: Op, found: Match, placed: Placed, policy: Policy, kernels: Kernels
) -> Contracted:
    """Return how ``op`` sums and is differentiated; empty for what is no contraction.

    A contraction that sums nothing runs in full precision, but its derivatives sum over
    everything that it repeats: where the framework lets us, they are low.

    Args:
        op: The op.
        found: Its class.
        placed: Where it computes.
        policy: The policy.
        kernels: What low contractions hand over.
    """
    low, full = policy.low, policy.full
    untouched = found.op_class is OpClass.KEEP or not low
    contracts = op.accumulates or op.contracted is not None
    if untouched or not contracts or placed.results[0] not in (low, full):
        return Contracted()
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
