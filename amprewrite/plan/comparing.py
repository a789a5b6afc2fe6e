"""Comparisons, and the moves of values to them: nothing is rounded on the way there.

``x == max(x, y)`` asks which of the two the maximum took; it is how JAX differentiates
a maximum, and how the largest elements are picked. If the maximum rounds what it reads
and the comparison does not, they are equal no longer: the gradient was zero (error 0.9
in a random program). A comparison reads values as they are stored, so that ops which
only move or choose values on the way to it must not round: they may run low where what
they read is made low. A compiler may not leave out a rounding on one way alone either;
see ``frameworks.jaxpr.rounded``.
"""

from collections.abc import Mapping

from amprewrite.dtypes import is_float
from amprewrite.ir import Op, ProgramGraph
from amprewrite.policy import OpClass


def compares(graph: ProgramGraph, op: Op, op_class: str) -> bool:
    """Return whether ``op``, of class ``op_class``, decides something by floats."""
    makes = any(is_float(graph.values[name].dtype) for name in op.results)
    reads = bool(graph.float_operands(op))
    return op_class == OpClass.KEEP and bool(op.results) and not makes and reads


def comparisons(graph: ProgramGraph, classes: Mapping[str, str]) -> frozenset[str]:
    """Return the ops that decide by floats.

    Args:
        graph: The program.
        classes: Class of every op.
    """
    return frozenset(
        op.name for op in graph.ops if compares(graph, op, classes[op.name])
    )


def compared_moves(graph: ProgramGraph, classes: Mapping[str, str]) -> frozenset[str]:
    """Return the ops by which values are moved or chosen on the way to a comparison.

    They are follow ops, and kept ones that give floats: ``topk``, a user's own cast.

    Args:
        graph: The program.
        classes: Class of every op.
    """
    found: set[str] = set()
    read: set[str] = set()
    for op in reversed(graph.ops):
        op_class = classes[op.name]
        moves = op_class in (OpClass.FOLLOW, OpClass.KEEP)
        if compares(graph, op, op_class):
            read.update(op.operands)
        elif moves and not read.isdisjoint(op.results):
            found.add(op.name)
            read.update(op.operands)
    return frozenset(found)
