"""Placement ``promote``: forward promotion under demand, iterated to a fixed point.

A storage that some op writes has one dtype for all its views, and a contraction with
only full readers returns its accumulator. Both are known only after a walk.
"""

from amprewrite.passes.analysis.classify import USER_CAST
from amprewrite.passes.analysis.context import NOTHING_PLACED, Placement, Situation
from amprewrite.passes.placement.walk import Walk
from amprewrite.policy.model import FOLLOW


def place(situation: Situation, before: Placement = NOTHING_PLACED) -> Placement:
    """Return the placement of every op.

    Args:
        situation: The facts about the program.
        before: A placement in the same situation, possibly with other weights stored
            low; its decisions about unaffected ops are reused.

    A walk finds written storages that some writer needs in full, and contractions with
    only full readers; it is repeated with the former pinned and the latter returning
    their accumulators, until none is added.
    """
    pinned = situation.returned.storages
    wide: frozenset[str] = frozenset()
    while True:
        walk = Walk(situation, pinned, wide, before)
        before = walk.run()
        more = _accumulators(situation, before)
        if walk.to_pin <= pinned and more <= wide:
            return before
        pinned |= walk.to_pin
        wide |= more


def _accumulators(situation: Situation, placement: Placement) -> set[str]:
    """Return the contractions with results that are only read in full, or guarded.

    Their accumulators are returned as they are, instead of being rounded and cast up
    again; ops that only move the result are looked through.
    """
    graph, full = situation.graph, situation.policy.full
    if not any(op.accumulates for op in graph.ops):
        return set()
    read, read_low = set(graph.outputs), set[str]()
    found: set[str] = set()
    for op in reversed(graph.ops):
        placed = placement.ops[op.name]
        moves = situation.classes[op.name].op_class is FOLLOW
        in_full = op.accumulates or moves
        for name in op.results if in_full else ():
            wide = graph.values[name].dtype == full
            if wide and (name not in read or name in read_low):
                in_full = False
        in_full = in_full or op.name in situation.guards
        if in_full and op.accumulates and placed.precision == situation.policy.low:
            found.add(op.name)
        read.update(op.operands)
        widens = op.canonical == USER_CAST and placed.results == (full,)
        if not widens and not (moves and in_full):
            pairs = zip(op.operands, placed.operands, strict=True)
            read_low.update([name for name, dtype in pairs if dtype != full])
    return found
