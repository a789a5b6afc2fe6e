"""Find the comparisons of floats that decide if a loop goes on.

The test of a loop may make the comparison itself, or read a truth value that the body
made, or an integer that was chosen by one. It is followed back through what makes truth
values, chooses and moves; arithmetic on integers ends it, so that a counter of steps
asks nothing of what it counts, and so does the place of the greatest number. A single
truth value that the program returns is such a test, too, of a loop outside of it.
"""

from collections.abc import Iterator

from amprewrite.ir import REGION_BOUNDARIES, Op, ProgramGraph
from amprewrite.ops import Group

_PASSING = (Group.CAST, Group.MOVEMENT, Group.SELECTION)
"""Groups of ops that pass on a truth value, or an integer chosen by one."""

_TWO = 2
"""Number of values that a comparison has; ``isfinite`` has one."""


def find_loop_tests(graph: ProgramGraph) -> frozenset[str]:
    """Return the names of the comparisons of floats that end loops."""
    outputs = ((name, graph.values[name]) for name in graph.outputs)
    alone = {name for name, v in outputs if v.dtype == "bool" and not v.shape}
    waiting = [op for op in graph.ops if op.decides or not alone.isdisjoint(op.results)]
    if not waiting:
        return frozenset()
    before = {value: op for op in graph.ops for value in op.turns}
    found: set[str] = set()
    known: set[str] = set()
    while waiting:
        op = waiting.pop()
        if op.name in known:
            continue
        known.add(op.name)
        compares = op.traits.group == Group.COMPARISON
        floats = any(graph.values[name].is_float for name in op.operands)
        if compares and floats and len(op.operands) + len(op.literals) >= _TWO:
            found.add(op.name)
        waiting += _makers(graph, op)
        waiting += (before[name] for name in op.results if name in before)
    return frozenset(found)


def _makers(graph: ProgramGraph, op: Op) -> Iterator[Op]:
    """Yield the ops that made the truth values and integers that ``op`` passes on."""
    values = graph.values
    passes = op.canonical in REGION_BOUNDARIES or op.traits.group in _PASSING
    if not passes and any(values[name].dtype != "bool" for name in op.results):
        return
    for name in op.operands:
        maker = graph.producer.get(name)
        if maker is not None and not values[name].is_float:
            yield maker
