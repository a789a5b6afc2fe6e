"""Moved values that a comparison reads: nothing is rounded on the way there.

``x == max(x, y)`` asks which of the two the maximum took; it is how JAX differentiates
a maximum, and how the largest elements are picked. If the maximum rounds what it reads
and the comparison does not, they are equal no longer: the gradient was zero (error 0.9
in a random program). A comparison reads values as they are stored, so that ops which
only move or choose values on the way to it must not round: they may run low where what
they read is made low.
"""

from collections.abc import Mapping

from amprewrite.ir import ProgramGraph
from amprewrite.passes.choices import compares
from amprewrite.policy import OpClass
from amprewrite.policy.match import Match


def compared_moves(graph: ProgramGraph, classes: Mapping[str, Match]) -> frozenset[str]:
    """Return the follow ops whose results a comparison reads, moved or not.

    Args:
        graph: The program.
        classes: Class of every op.
    """
    found: set[str] = set()
    read: set[str] = set()
    for op in reversed(graph.ops):
        op_class = classes[op.name].op_class
        if compares(graph, op, op_class):
            read.update(op.operands)
        elif op_class is OpClass.FOLLOW and not read.isdisjoint(op.results):
            found.add(op.name)
            read.update(op.operands)
    return frozenset(found)
