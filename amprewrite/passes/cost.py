"""The cost of a plan in bytes, by one function for every placement."""

from collections.abc import Iterable

from amprewrite.dtypes import itemsize
from amprewrite.ir import Op, ProgramGraph
from amprewrite.passes.placement import Placement
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
    if not op.mutates and _is_view(graph, op):
        return 0
    placed, values = placement.ops[op.name], graph.values
    moved = 0
    for names, dtypes in ((op.operands, placed.operands), (op.results, placed.results)):
        for name, dtype in zip(names, dtypes, strict=True):
            moved += values[name].elements * itemsize(dtype)
    return moved


def _is_view(graph: ProgramGraph, op: Op) -> bool:
    """Whether all results share their storage with operands."""
    read = {graph.storage(name) for name in op.operands}
    return bool(op.results) and read.issuperset(map(graph.storage, op.results))
