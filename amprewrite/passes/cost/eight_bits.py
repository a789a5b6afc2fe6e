"""Choose the contractions that round to 8 bits, by saved bytes and errors."""

from collections.abc import Mapping

from amprewrite.ir import Op, ProgramGraph
from amprewrite.passes.cost.cost import Objective
from amprewrite.plan import Decision
from amprewrite.plan.sensitivity import EightBits, factors_of
from amprewrite.policy.contract import Contract


def saved_bytes(graph: ProgramGraph, op: Op) -> int:
    """Return the bytes that a contraction saves by factors of 8 bits, not of 16.

    Each factor is read in half the bytes. It ranks contractions against each other and
    against casts; an emulated product saves nothing.
    """
    return op.trips * sum(graph.values[name].elements for name in factors_of(op))


def worth_rounding(
    graph: ProgramGraph, formats: Mapping[str, Contract], objective: Objective
) -> dict[str, Contract]:
    """Return the formats of the contractions that are worth their error in 8 bits.

    Those are all without error costs, and else the ones whose error costs no more than
    :func:`saved_bytes`.

    Args:
        graph: The program.
        formats: Formats of the contractions that may round, by op name.
        objective: Prices and error costs.
    """
    return {
        op: found
        for op, found in formats.items()
        if objective.error(EightBits(op, found.forward, found.scaling))
        <= saved_bytes(graph, graph.op_by_name[op])
    }


def saved_by(graph: ProgramGraph, decisions: Mapping[str, Decision]) -> int:
    """Return the bytes that the contractions of a plan save by 8 bits."""
    quantised = (op for op in graph.ops if decisions[op.name].quantises)
    return sum(saved_bytes(graph, op) for op in quantised)
