"""The cost of a plan in bytes, by one function for every placement."""

from collections.abc import Iterable

from amprewrite.dtypes import itemsize
from amprewrite.ir import Op, ProgramGraph
from amprewrite.passes.place import Placement
from amprewrite.plan import Cast, Cost


def plan_cost(graph: ProgramGraph, placement: Placement, casts: Iterable[Cast]) -> Cost:
    """Return what ``casts`` and the ops of ``graph`` move, each run on its own.

    An op reads its operands and writes its results once; a view moves nothing. A
    symbolic extent counts as one, so that the figure is a lower bound there.
    """
    run = [cast for cast in casts if not cast.folded]
    cast_bytes = sum(cast.bytes for cast in run)
    op_bytes = sum(_op_bytes(graph, op, placement) for op in graph.ops)
    return Cost(
        casts=len(run),
        cast_elements=sum(graph.values[cast.value].elements for cast in run),
        cast_bytes=cast_bytes,
        op_bytes=op_bytes,
        total_bytes=cast_bytes + op_bytes,
    )


def _op_bytes(graph: ProgramGraph, op: Op, placement: Placement) -> int:
    aliases = any(graph.storage(name) != name for name in op.results)
    if aliases and not op.mutates:
        owners = {graph.storage(name) for name in op.operands}
        if all(graph.storage(name) in owners for name in op.results):
            return 0
    placed = placement.ops[op.name]
    pairs = (*zip(op.operands, placed.operands, strict=True),)
    pairs += (*zip(op.results, placed.results, strict=True),)
    return sum(graph.values[name].elements * itemsize(dtype) for name, dtype in pairs)
