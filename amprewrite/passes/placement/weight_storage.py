"""Choose the weights that are stored low: those that no op reads in full.

Without training, a cast of a weight is done once, at conversion; when training, only
tensors filled with one number are made low instead of being cast. The choice is
iterative: assume all candidates low, place, and drop those that some op still reads in
full, until none is dropped and no new candidate appears.
"""

from collections.abc import Callable, Container
from dataclasses import replace

from amprewrite.ir import Op
from amprewrite.ops import Group
from amprewrite.passes.analysis.context import NOTHING_PLACED, Placement, Situation
from amprewrite.passes.analysis.weights_and_literals import (
    extreme_constants,
    is_transparent,
)
from amprewrite.passes.placement.promote import place

Placer = Callable[[Situation, Placement], Placement]
"""Function that places all ops, from a placement with other stored weights."""


def place_with_storage(
    situation: Situation, *, keep_parameter_dtype: bool, placer: Placer | None = None
) -> tuple[Placement, frozenset[str]]:
    """Return the placement with as many weights stored low as possible.

    Args:
        situation: The facts before placement.
        keep_parameter_dtype: Whether parameters keep their dtype.
        placer: Function that places the ops; None for placement ``promote``.
    """
    place_all = placer or place

    def wanted(placement: Placement) -> frozenset[str]:
        found = _candidates(situation, placement)
        if keep_parameter_dtype:
            values = situation.graph.values
            return frozenset(c for c in found if values[c].kind == "result")
        return found

    first = placement = place_all(situation, NOTHING_PLACED)
    candidates = tried = wanted(first)
    while candidates:
        attempt = replace(situation, low_weights=candidates)
        placement = place_all(attempt, placement)
        kept = candidates - _read_in_full(attempt, placement)
        if kept == candidates:
            # An op may want one weight low only since another one is.
            more = wanted(placement) - tried
            if not more:
                return placement, candidates
            kept, tried = candidates | more, tried | more
        candidates = kept
    return first, frozenset()


def _leaf_uses(situation: Situation, placement: Placement) -> list[tuple[Op, int, str]]:
    """Return the uses that read a weight to compute, not only to move it.

    An assigned op counts as computing: it reads the weight in its precision.
    """
    graph, assignments = situation.graph, placement.assignments or {}
    return [
        (op, index, name)
        for op in graph.ops
        if op.name in assignments or not moves_weights(situation, op)
        for index, name in enumerate(op.operands)
        if name in situation.weights
    ]


def moves_weights(situation: Situation, op: Op) -> bool:
    """Return whether ``op`` only moves weights, so that its results are weights."""
    return is_transparent(op, situation.classes[op.name].op_class) and all(
        result in situation.weights for result in op.results
    )


def _candidates(situation: Situation, placement: Placement) -> frozenset[str]:
    """Return the weights with a low use, and tables that are only looked up.

    A mask with numbers beyond the low range is none: its cast saturates.
    """
    low: set[str] = set()
    for op, index, name in _leaf_uses(situation, placement):
        if placement.ops[op.name].operands[index] == situation.policy.low:
            low |= situation.weights[name]
    if situation.policy.lookups == "low":
        low |= only_looked_up(situation)
    return frozenset(low - extreme_constants(situation.graph, situation.policy.low))


def only_looked_up(situation: Situation) -> frozenset[str]:
    """Return the tables of lookups; another op may read them too."""
    graph = situation.graph
    tables: set[str] = set()
    for op in graph.ops:
        if op.traits.group == Group.LOOKUP and op.operands[0] in situation.weights:
            tables |= situation.weights[op.operands[0]]
    return frozenset(t for t in tables if len(graph.values[t].shape) > 1)


def carried(
    situation: Situation, assignable: Container[str]
) -> dict[str, frozenset[str]]:
    """Return, for each weight or moved weight, the weights that it comes from.

    Unlike ``situation.weights``, it excludes results of ops in ``assignable``, which
    have an assignment of their own.
    """
    inputs = {value.name for value in situation.graph.inputs()}
    found = {n: r for n, r in situation.weights.items() if n in inputs or n in r}
    for op in situation.graph.ops:
        if op.name not in assignable and moves_weights(situation, op):
            names = (found.get(name, frozenset[str]()) for name in op.operands)
            moved = frozenset[str]().union(*names)
            found.update({r: moved for r in op.results if r not in found})
    return found


def _read_in_full(situation: Situation, placement: Placement) -> frozenset[str]:
    """Return the weights that some op reads in full although they are stored low.

    A move that joins a weight with one that is stored full counts as such a read.
    """
    full = situation.policy.full
    found: set[str] = set()
    assignable = placement.assignments or {}
    known = carried(situation, assignable)
    for op in situation.graph.ops:
        if op.name not in assignable and moves_weights(situation, op):
            operands = placement.ops[op.name].operands
            pairs = zip(op.operands, operands, strict=True)
            full_ones = (name for name, dtype in pairs if dtype == full)
            found.update(*(known.get(n, ()) for n in full_ones))
    for op, index, name in _leaf_uses(situation, placement):
        chosen = placement.assignments is not None
        looked_up = op.traits.group == Group.LOOKUP and index == 0 and not chosen
        if placement.ops[op.name].operands[index] == full and not looked_up:
            found |= situation.weights[name]
    for output in situation.graph.outputs:
        found |= situation.weights.get(output, frozenset())
    return frozenset(found)
