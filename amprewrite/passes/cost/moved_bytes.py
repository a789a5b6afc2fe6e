"""Elements and bytes that ops and casts read and write, for every target."""

from amprewrite.ir import REGION_BOUNDARIES, Op, ProgramGraph
from amprewrite.ops import Group


def cast_bytes(elements: int, from_size: int, to_size: int, trips: int) -> int:
    """Return the bytes that a cast moves: each element is read and written once.

    Args:
        elements: Elements of the value.
        from_size: Bytes of an element before; 0 if they are counted elsewhere.
        to_size: Bytes of an element after.
        trips: Iterations of the loops around it, multiplied.
    """
    return trips * elements * (from_size + to_size)


def is_view(graph: ProgramGraph, op: Op) -> bool:
    """Return whether ``op`` moves nothing: its results share storage with operands.

    Ops at region boundaries count too: the ops inside read and write the value.
    """
    if op.canonical in REGION_BOUNDARIES:
        return True
    if op.mutates or not op.results:
        return False
    values, first = graph.values, op.results[0]
    if values[first].alias == first:  # as most results do
        return False
    owners = {values[name].alias for name in op.results}
    if not owners.isdisjoint(op.results):
        return False
    return owners.issubset([values[name].alias for name in op.operands])


def read_elements(graph: ProgramGraph, op: Op, index: int) -> int:
    """Return the number of elements that an op reads of operand ``index``."""
    elements = graph.values[op.operands[index]].elements
    if index or op.traits.group != Group.LOOKUP:
        return elements
    return min(elements, sum(graph.values[name].elements for name in op.results))
