"""Bytes that contractions save by rounding to 8 bits."""

from collections.abc import Mapping

from amprewrite.ir import Op, ProgramGraph
from amprewrite.plan import Decision
from amprewrite.plan.sensitivity import factors_of


def saved_bytes(graph: ProgramGraph, op: Op) -> int:
    """Return the bytes that a contraction saves by factors of 8 bits, not of 16.

    Each factor is read in half the bytes. It ranks contractions against each other and
    against casts; an emulated product saves nothing.
    """
    return op.trips * sum(graph.values[name].elements for name in factors_of(op))


def saved_by(graph: ProgramGraph, decisions: Mapping[str, Decision]) -> int:
    """Return the bytes that the contractions of a plan save by 8 bits."""
    quantised = (op for op in graph.ops if decisions[op.name].quantises)
    return sum(saved_bytes(graph, op) for op in quantised)
