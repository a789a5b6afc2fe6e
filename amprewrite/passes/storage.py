"""Which weights are stored low: those that nobody reads in full.

Without training a cast of a weight is done once, at conversion; when training only
tensors filled with one number are made low at once instead of being cast. The answer
is found by trying: take all candidates for low, place, and drop those that some op
still reads in full, until none is dropped.
"""

from dataclasses import replace

from amprewrite.ir import Op
from amprewrite.passes.facts import is_transparent
from amprewrite.passes.place import place
from amprewrite.passes.placement import Placement, Situation

LOOKUPS = frozenset(("embedding", "index_select"))
"""Ops that read a few rows of a table; the rows may be converted after the lookup."""


def place_with_storage(
    situation: Situation, *, training: bool
) -> tuple[Placement, frozenset[str]]:
    """Return the placement with as many weights stored low as nobody wants in full.

    Args:
        situation: What is known before placement.
        training: Whether parameters keep their dtype.
    """
    first = placement = place(situation)
    candidates = _candidates(situation, first)
    if training:
        values = situation.graph.values
        candidates = frozenset(c for c in candidates if values[c].kind == "result")
    while candidates:
        attempt = replace(situation, low_weights=candidates)
        placement = place(attempt, placement)
        kept = candidates - _read_in_full(attempt, placement)
        if kept == candidates:
            return placement, candidates
        candidates = kept
    return first, frozenset()


def _leaf_uses(situation: Situation) -> list[tuple[Op, int, str]]:
    """Return the uses that read a weight to compute, not only to move it."""
    graph = situation.graph
    return [
        (op, index, name)
        for op in graph.ops
        for index, name in enumerate(op.operands)
        if name in situation.weights and not _moves(situation, op)
    ]


def _moves(situation: Situation, op: Op) -> bool:
    return is_transparent(op, situation.classes[op.name].op_class) and all(
        result in situation.weights for result in op.results
    )


def _candidates(situation: Situation, placement: Placement) -> frozenset[str]:
    """Weights of which some use is low, and tables that are only looked up."""
    low: set[str] = set()
    for op, index, name in _leaf_uses(situation):
        if placement.ops[op.name].operands[index] == situation.policy.low:
            low |= situation.weights[name]
    if situation.policy.lookups == "low":
        low |= _only_looked_up(situation)
    return frozenset(low)


def _only_looked_up(situation: Situation) -> frozenset[str]:
    graph = situation.graph
    tables: set[str] = set()
    for op in graph.ops:
        if op.canonical in LOOKUPS and op.operands[0] in situation.weights:
            tables |= situation.weights[op.operands[0]]
    return frozenset(t for t in tables if len(graph.values[t].shape) > 1)


def _read_in_full(situation: Situation, placement: Placement) -> frozenset[str]:
    """Return the weights that some op reads in full, though they are stored low."""
    full = situation.policy.full
    found: set[str] = set()
    for op, index, name in _leaf_uses(situation):
        looked_up = op.canonical in LOOKUPS and index == 0
        if placement.ops[op.name].operands[index] == full and not looked_up:
            found |= situation.weights[name]
    for output in situation.graph.outputs:
        found |= situation.weights.get(output, frozenset())
    return frozenset(found)
