"""Values without data that must not be rounded: random draws, positions.

Whether ``uniform(key) < p`` holds is no longer as likely, and no longer the same, once
the draw is rounded: a mask of dropout drawn in bfloat16 had a relative error of 5e-2 in
the outputs where full precision had 4e-3. First-order errors do not see it. And what is
computed of a draw or a position may leave the range: a uniform number in bfloat16 can
be 1, of which a normal one is infinite (248 of 32,768 were). Nothing is gained either:
what is made of no data is made anew at each call, or is small.
"""

from collections.abc import Mapping

from amprewrite.dtypes import is_float
from amprewrite.ir import ProgramGraph
from amprewrite.plan.comparing import compares
from amprewrite.policy import OpClass
from amprewrite.policy.match import Match

COMPUTING = (OpClass.PROMOTE, OpClass.ACCUMULATE)
"""Classes of ops that do arithmetic and may be low, contractions left out."""


def exact_ops(graph: ProgramGraph, classes: Mapping[str, Match]) -> frozenset[str]:
    """Return the ops that make, of no float input, what is compared or computed with.

    A comparison is a kept op that reads floats and makes none: ``lt``, ``argmax``. What
    computes is an op that is denied, or one without data that does arithmetic; data
    movement alone may be low, as the cast may come before or after it.

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
    """Return the float values that no float input or parameter has a part in."""
    free = {value.name for value in graph.inputs("constant")}
    for op in graph.ops:
        floats = (op.operands[index] for index in graph.float_operands(op))
        if free.issuperset(floats):
            free.update(op.results)
    return {name for name in free if is_float(graph.values[name].dtype)}
