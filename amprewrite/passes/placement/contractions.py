"""Accumulators and derivatives of contractions: the roundings that a plan fixes."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from amprewrite.ir import Op, ProgramGraph
from amprewrite.ir.graph import factor_indices
from amprewrite.passes.analysis.additions import last_contractions
from amprewrite.passes.analysis.classify import classify
from amprewrite.passes.analysis.context import Placed
from amprewrite.passes.analysis.demand import compute_demand
from amprewrite.plan.facts import has_kernel
from amprewrite.plan.hardware import OPERAND, Kernels
from amprewrite.policy import Matcher, OpClass, Policy, Reason
from amprewrite.policy.match import Match
from amprewrite.policy.model import Contract


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


# Formats of 8 bits inside contractions, by the table ``[contract]`` of a policy.

NO_FORMATS = Contract()
"""Formats of an op that rounds nothing to 8 bits."""

_ANY_LOW = "bfloat16"
"""A low dtype by which ops are classed under a policy that has none."""


def contract_formats(
    graph: ProgramGraph, matcher: Matcher, classes: Mapping[str, Match]
) -> dict[str, Contract]:
    """Return the formats of each contraction that rounds to 8 bits, by op name.

    Those are the ones that the policy allows to be low, as they are in full precision
    under a policy without a low dtype. Exact arguments stay exact.

    Args:
        graph: The program.
        matcher: The policy and overrides.
        classes: Class of every op.
    """
    policy = matcher.policy
    if not policy.contract:
        return {}
    if not policy.low:
        policy = replace(policy, low=_ANY_LOW)
        shadow = Matcher(policy, matcher.overrides, matcher.full, matcher.used)
        classes = classify(graph, shadow)
    demands = compute_demand(graph, classes, ())
    spared: Collection[str] = ()
    if policy.contract.spare_residual:
        spared = last_contractions(graph)
    return {
        op.name: _with_kernel(graph, op, policy)
        for op in graph.ops
        if _may_round(graph, op, policy, classes[op.name])
        and not demands.is_exact(op)
        and op.name not in spared
    }


def _with_kernel(graph: ProgramGraph, op: Op, policy: Policy) -> Contract:
    """Return the formats of a contraction; emulated if no kernel takes it."""
    found = policy.contract
    if found.kernel == "emulated" or has_kernel(graph, op, found, policy.full):
        return found
    return replace(found, kernel="emulated")


def _may_round(graph: ProgramGraph, op: Op, policy: Policy, found: Match) -> bool:
    """Return whether ``op`` multiplies full-typed operands, and may do so low."""
    indices = factor_indices(op)
    return (
        bool(indices)
        and found.op_class is OpClass.ALLOW
        and not op.mutates
        and not op.reads
        and all(graph.is_dtype(op.operands[i], policy.full) for i in indices)
    )
