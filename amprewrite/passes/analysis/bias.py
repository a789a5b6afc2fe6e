"""Find additions of a bias to a contraction, which a fused linear layer absorbs.

``x @ w + b`` is one op in a framework with a linear layer, and two in others. Promotion
alone would return to full precision after every bias, since parameters are full:
activations saved for the backward pass then took 0.92 of their bytes in float32, and
0.69 with the addition counted to the contraction (an Equinox transformer in bfloat16).
The bias is added to the accumulator and the sum is rounded once.
"""

from collections.abc import Mapping

from amprewrite.ir import Op, ProgramGraph, Value
from amprewrite.policy.match import Match
from amprewrite.policy.model import ALLOW, FOLLOW, PROMOTE


def find_biases(graph: ProgramGraph, classes: Mapping[str, Match]) -> dict[str, str]:
    """Return the additions of a bias, by op name, each with its contraction."""
    if not any(op.accumulates for op in graph.ops):
        return {}
    inputs = _moved_inputs(graph, classes)
    found: dict[str, str] = {}
    for op in graph.ops:
        if op.canonical == "add" and classes[op.name].op_class is PROMOTE:
            for name, bias in _orders(op):
                source = _sole_source(graph, classes, name)
                smaller = bias in inputs and _is_smaller(inputs[bias], graph, name)
                if smaller and source is not None:
                    found[op.name] = source.name
    return found


def _is_smaller(given: Value, graph: ProgramGraph, name: str) -> bool:
    """Return whether an input has fewer elements, or as many in fewer dimensions.

    It has as many where the batch is one, or symbolic, which counts as one: whether an
    operand is a bias does not depend on that.
    """
    found = graph.values[name]
    fewer = given.elements < found.elements
    same = given.elements == found.elements
    return fewer or (same and len(given.shape) < len(found.shape))


def _orders(op: Op) -> tuple[tuple[str, str], ...]:
    """Return the two operands of ``op`` in both orders; empty for other ops."""
    match op.operands:
        case (one, other):
            return (one, other), (other, one)
        case _:
            return ()


def _moved_inputs(
    graph: ProgramGraph, classes: Mapping[str, Match]
) -> dict[str, Value]:
    """Return the input that each moved value is a copy of."""
    moved = {value.name: value for value in graph.inputs()}
    for op in graph.ops:
        moves = classes[op.name].op_class is FOLLOW and not op.mutates
        if moves and len(op.operands) == 1 and op.operands[0] in moved:
            moved.update(dict.fromkeys(op.results, moved[op.operands[0]]))
    return moved


def _sole_source(
    graph: ProgramGraph, classes: Mapping[str, Match], name: str
) -> Op | None:
    """Return the contraction that alone determines ``name``, through moves, if any."""
    while len(graph.users[name]) == 1 and name not in graph.outputs:
        maker = graph.producer.get(name)
        if maker is None:
            return None
        op_class = classes[maker.name].op_class
        if op_class is ALLOW and maker.accumulates:
            return maker
        if op_class is not FOLLOW or len(maker.operands) != 1:
            return None
        name = maker.operands[0]
    return None
