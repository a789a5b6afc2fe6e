"""Values without data that a comparison decides by: random draws, positions.

Whether ``uniform(key) < p`` holds is no longer as likely, and no longer the same, once
the draw is rounded: a mask of dropout drawn in bfloat16 had a relative error of 5e-2 in
the outputs where full precision had 4e-3. First-order errors do not see it. Nothing is
gained either: what is made of no data is made anew at each call, or is small.
"""

from collections.abc import Mapping

from amprewrite.dtypes import is_float
from amprewrite.ir import Op, ProgramGraph
from amprewrite.policy import OpClass
from amprewrite.policy.match import Match


def deciding_ops(graph: ProgramGraph, classes: Mapping[str, Match]) -> frozenset[str]:
    """Return the ops that make, of no float input, what a comparison reads.

    A comparison is a kept op that reads floats and makes none: ``lt``, ``argmax``.

    Args:
        graph: The program.
        classes: Class of every op.
    """
    free = _without_data(graph)
    compared: set[str] = set()
    found: set[str] = set()
    for op in reversed(graph.ops):
        if not compared.isdisjoint(op.results):
            found.add(op.name)
        elif not (classes[op.name].op_class is OpClass.KEEP and _decides(graph, op)):
            continue
        compared.update(free.intersection(op.operands))
    return frozenset(found)


def _decides(graph: ProgramGraph, op: Op) -> bool:
    makes = any(is_float(graph.values[name].dtype) for name in op.results)
    return bool(op.results) and not makes and bool(graph.float_operands(op))


def _without_data(graph: ProgramGraph) -> set[str]:
    """Return the float values that no float input or parameter has a part in."""
    free = {value.name for value in graph.inputs("constant")}
    for op in graph.ops:
        floats = (op.operands[index] for index in graph.float_operands(op))
        if free.issuperset(floats):
            free.update(op.results)
    return {name for name in free if is_float(graph.values[name].dtype)}
