"""Steps: the parts of a program that run once more, or not, as a whole."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from amprewrite.ir import REGION_BOUNDARIES, Op, ProgramGraph
from amprewrite.ops.repeatable import repeats


def is_repeatable(op: Op) -> bool:
    """Return whether an op may run twice: no contraction, no draw, no write.

    An op that is not known, or must not be touched, never runs twice.
    """
    if op.mutates or op.fence or not op.results:
        return False
    return repeats(op.canonical, op.traits.group)


@dataclass(frozen=True)
class Step:
    """An op, or a body with all of its ops, which runs as a whole.

    Attributes:
        ops: The ops, in program order.
        operands: Values that it reads, each once.
        results: Values that it makes and others may read.
        repeatable: Whether it may run twice.
    """

    ops: tuple[Op, ...]
    operands: tuple[str, ...]
    results: tuple[str, ...]
    repeatable: bool


def bodies(graph: ProgramGraph) -> tuple[str, ...]:
    """Return the regions with ops that are steps of their own: program and loops.

    The ops of a body that runs once (a branch, a custom rule) are one step.
    """
    entered: dict[str, int] = {}
    carries: set[str] = set()
    for op in graph.ops:
        if op.canonical == "enter":
            entered[op.region] = op.trips
        elif op.canonical == "carry":
            carries.add(op.region)
    loops = {
        op.region
        for op in graph.ops
        if op.region
        and op.canonical not in REGION_BOUNDARIES
        and (op.region in carries or op.trips > entered.get(op.region, op.trips))
    }
    return ("", *sorted(loops))


def steps_of(graph: ProgramGraph, body: str) -> list[Step]:
    """Return the steps of a body, in program order.

    Args:
        graph: The program.
        body: Its region; empty for the program itself.
    """
    prefix = f"{body}/" if body else ""
    found: dict[str, list[Op]] = {}
    for op in graph.ops:
        if op.region == body:
            found[f"op {op.name}"] = [op]
        elif op.region.startswith(prefix):
            inner = op.region[len(prefix) :].split("/")[0]
            found.setdefault(f"body {inner}", []).append(op)
    return [_step(graph, ops) for ops in found.values()]


def _step(graph: ProgramGraph, ops: list[Op]) -> Step:
    made = {name for op in ops for name in op.results}
    read = dict.fromkeys(n for op in ops for n in op.operands if n not in made)
    if len(ops) == 1:
        results = ops[0].results
    else:
        inside = {op.name for op in ops}
        results = tuple(_left(graph, ops, inside))
    rules = {op.canonical for op in ops} & {"enter", "carry", "leave"}
    repeatable = not rules and all(
        op.canonical == "boundary" or is_repeatable(op) for op in ops
    )
    repeatable &= graph.written.isdisjoint(map(graph.storage, (*read, *made)))
    return Step(tuple(ops), tuple(read), results, repeatable)


def _left(graph: ProgramGraph, ops: Iterable[Op], inside: set[str]) -> Iterator[str]:
    """Yield the results that are read outside of a body."""
    outputs = set(graph.outputs)
    for op in ops:
        for name in op.results:
            users = graph.users[name]
            if name in outputs or any(user.name not in inside for user, _ in users):
                yield name
