"""Values that depend on no data and must not be rounded: random draws, positions.

Rounding a draw changes the probability, and the outcome, of ``uniform(key) < p``: a
mask of dropout drawn in bfloat16 had a relative error of 5e-2 in the outputs, against
4e-3 in full precision. First-order errors do not show it. Ops on a draw or a position
may also overflow: a uniform number in bfloat16 can be 1, and the normal number made of
it is infinite (248 of 32,768 were). Low precision gains nothing here: values without
data are computed anew at each call, or are small.
"""

from collections.abc import Mapping

from amprewrite.ir import ProgramGraph
from amprewrite.plan.comparing import compares
from amprewrite.policy import OpClass
from amprewrite.policy.match import Match

COMPUTING = (OpClass.PROMOTE, OpClass.ACCUMULATE)
"""Classes of ops that do arithmetic and may be low, except contractions."""


def exact_ops(graph: ProgramGraph, classes: Mapping[str, Match]) -> frozenset[str]:
    """Return the ops on data-independent values that feed comparisons or arithmetic.

    A comparison is a keep op with float operands and no float result: ``lt``,
    ``argmax``. Arithmetic is a deny op, or an op on data-independent values of a class
    in :data:`COMPUTING`; data movement alone may be low, since a cast commutes with it.

    Args:
        graph: The program.
        classes: Class of every op.
    """
    free = _without_data(graph)
    exact: set[str] = set()
    found: set[str] = set()
    for op in reversed(graph.ops):
        op_class = classes[op.name].op_class
        computes = op_class in COMPUTING and not free.isdisjoint(op.results)
        if computes or not exact.isdisjoint(op.results):
            found.add(op.name)
        elif op_class is not OpClass.DENY and not compares(graph, op, op_class):
            continue
        exact.update(free.intersection(op.operands))
    return frozenset(found)


def _without_data(graph: ProgramGraph) -> set[str]:
    """Return the float values that depend on no float input or parameter."""
    free = {value.name for value in graph.inputs("constant")}
    for op in graph.ops:
        floats = (name for name in op.operands if graph.values[name].is_float)
        if free.issuperset(floats):
            free.update(op.results)
    return {name for name in free if graph.values[name].is_float}
