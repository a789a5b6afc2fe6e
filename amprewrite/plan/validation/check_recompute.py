"""Consistency of the recomputed regions of a plan with its program."""

from collections.abc import Iterator

from amprewrite.ir import ProgramGraph
from amprewrite.ops.repeatable import repeats
from amprewrite.plan.model import Plan


def recompute_mistakes(graph: ProgramGraph, plan: Plan) -> Iterator[str]:
    """Yield the mistakes in the kept values and recomputed regions of a plan.

    Args:
        graph: The program.
        plan: The plan for it.
    """
    found = plan.recompute
    if found and not plan.training:
        yield "recompute: has regions, in a plan for inference"
    for kept in found.kept:
        if kept.value not in graph.values:
            yield f"recompute: keeps %{kept.value}, which the program has not"
    for number, region in enumerate(found.regions):
        where = f"recompute.regions[{number}]"
        if not region.ops:
            yield f"{where}: has no ops"
        for name in region.ops:
            op = graph.op_by_name.get(name)
            if op is None:
                yield f"{where}: the program has no op {name!r}"
            elif op.canonical != "boundary" and (
                op.mutates or op.fence or not repeats(op.canonical, op.traits.group)
            ):
                yield f"{where}: {name} ({op.canonical}) must not run twice"
