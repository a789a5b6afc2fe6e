"""Reasons of ops that are full because low precision cannot represent their values."""

from dataclasses import replace
from math import inf

from amprewrite.ir import Op, ProgramGraph
from amprewrite.passes.cost.cost import FREE
from amprewrite.plan import Decision, Plan
from amprewrite.plan.sensitivity import Sensitivity


def explained(
    plan: Plan, graph: ProgramGraph, sensitivity: Sensitivity
) -> tuple[Decision, ...]:
    """Return the decisions, with an infinite error as reason where it decided."""
    return tuple(
        _explained(plan.by_op[op.name], op, plan, sensitivity) for op in graph.ops
    )


def _explained(
    decision: Decision, op: Op, plan: Plan, sensitivity: Sensitivity
) -> Decision:
    if decision.precision != plan.full or decision.op_class not in FREE:
        return decision
    for name in op.results:
        if sensitivity.stored.get(name) == inf:
            return replace(decision, why=_beyond(name, "its values", plan, sensitivity))
    for name in op.operands:
        if sensitivity.read.get((name, op.name)) == inf:
            what = f"the values of %{name}"
            return replace(decision, why=_beyond(name, what, plan, sensitivity))
    return decision


def _beyond(name: str, what: str, plan: Plan, sensitivity: Sensitivity) -> str:
    if name in sensitivity.peaks:
        return f"{what} reach {sensitivity.peaks[name]:.1e}, beyond {plan.low}"
    return f"the error of {what} in {plan.low} has no bound"
