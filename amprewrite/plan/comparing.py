"""Comparisons, and the moves of values to them: nothing is rounded on the way there.

``x == max(x, y)`` asks which of the two the maximum took; it is how JAX differentiates
a maximum, and how the largest elements are picked. If the maximum rounds what it reads
and the comparison does not, they are equal no longer: the gradient was zero (error 0.9
in a random program). A comparison reads values as they are stored, so that ops which
only move or choose values on the way to it must not round: they may run low where what
they read is made low. A compiler may not leave out a rounding on one way alone either;
see ``frameworks.jaxpr.interpret.rounded``.
"""

from collections.abc import Mapping

from amprewrite.dtypes import is_float
from amprewrite.ir import Op, ProgramGraph
from amprewrite.plan.model import OUTPUT
from amprewrite.policy import OpClass


def compares(graph: ProgramGraph, op: Op, op_class: str) -> bool:
    """Return whether ``op``, of class ``op_class``, decides something by floats."""
    makes = any(is_float(graph.values[name].dtype) for name in op.results)
    reads = bool(graph.float_operands(op))
    return op_class == OpClass.KEEP and bool(op.results) and not makes and reads


def comparisons(graph: ProgramGraph, classes: Mapping[str, str]) -> frozenset[str]:
    """Return the ops that decide by floats, and ``OUTPUT`` if its readers may.

    Args:
        graph: The program.
        classes: Class of every op.
    """
    found = {op.name for op in graph.ops if compares(graph, op, classes[op.name])}
    if chosen_outputs(graph, classes):
        found.add(OUTPUT)
    return frozenset(found)


def compared_moves(graph: ProgramGraph, classes: Mapping[str, str]) -> frozenset[str]:
    """Return the ops by which values are moved or chosen on the way to a comparison.

    They are follow ops, and kept ones that give floats: ``topk``, a user's own cast.

    Args:
        graph: The program.
        classes: Class of every op.
    """
    found: set[str] = set()
    read = set(chosen_outputs(graph, classes))
    for op in reversed(graph.ops):
        if compares(graph, op, classes[op.name]):
            read.update(op.operands)
        elif _moves(op, classes) and not read.isdisjoint(op.results):
            found.add(op.name)
            read.update(op.operands)
    return frozenset(found)


def chosen_outputs(graph: ProgramGraph, classes: Mapping[str, str]) -> frozenset[str]:
    """Return outputs that were chosen among values which the caller has too, and those.

    Who reads ``h`` and ``max(h)`` may ask for ``h == max(h)``: the backward half of a
    custom derivative does, a program of its own. The caller has the inputs, and other
    outputs that hold the same values.

    Args:
        graph: The program.
        classes: Class of every op.
    """
    sources: dict[str, frozenset[str]] = {}
    chosen: set[str] = set()
    for op in graph.ops:
        if not _moves(op, classes):
            continue
        names = [op.operands[index] for index in graph.float_operands(op)]
        held = frozenset[str]().union(*(sources.get(n, {n}) for n in names))
        sources.update(dict.fromkeys(op.results, held))
        if op.traits.chooses or not chosen.isdisjoint(names):
            chosen.update(op.results)
    inputs = {value.name for value in graph.inputs()}
    held_by: dict[str, set[str]] = {}
    for name in graph.outputs:
        if is_float(graph.values[name].dtype):
            for source in sources.get(name, (name,)):
                held_by.setdefault(source, set()).add(name)
    found: set[str] = set()
    for source, names in held_by.items():
        others = len(names) > 1 or source in inputs
        if others and not chosen.isdisjoint(names):
            found |= names
    return frozenset(found)


def _moves(op: Op, classes: Mapping[str, str]) -> bool:
    return classes[op.name] in (OpClass.FOLLOW, OpClass.KEEP)
