"""Uses of a value by ops and by the outputs of the program."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

from amprewrite.ir import Op, ProgramGraph
from amprewrite.plan.model import OUTPUT, Cast

View = tuple[Op, str]
"""An op that makes a view of an operand or writes it in place, and its result."""


def uses_of(graph: ProgramGraph, name: str) -> Iterator[tuple[str, int]]:
    """Yield the uses of value ``name`` as (op, operand index), the outputs last."""
    for op, index in graph.users[name]:
        yield op.name, index
    for index, output in enumerate(graph.outputs):
        if output == name:
            yield OUTPUT, index


def dtypes_read(op: Op, operands: Sequence[str]) -> dict[str, str]:
    """Return the dtype in which ``op`` reads each value; of one read twice, the first.

    Args:
        op: The op.
        operands: The dtype of each operand, as a plan or a placement has them.
    """
    return dict(zip(reversed(op.operands), reversed(operands), strict=True))


def is_at_definition(graph: ProgramGraph, cast: Cast, sources: Collection[str]) -> bool:
    """Return whether ``cast`` replaces the value that it converts.

    A storage that is written in place has one dtype for all its views, so that a value
    made in another dtype is cast at its definition, before any op views or writes it;
    and so is a value that is read and returned. A cast that only some uses share stands
    before the first of them.

    Args:
        graph: The program.
        cast: The cast.
        sources: Values that the outputs are cast from, see :func:`output_sources`.
    """
    if cast.folded or not cast.producer:
        return False
    returned = cast.value in sources and graph.users[cast.value]
    if cast.value not in graph.written and not returned:
        return False
    return set(uses_of(graph, cast.value)) <= set(cast.uses)


def output_sources(graph: ProgramGraph) -> tuple[str, ...]:
    """Return for each output the value that a cast of it would convert.

    It is the output itself, unless several outputs are views of one result: then it is
    that result, so that they share the storage of one cast as they shared its own.
    """
    sharing: dict[str, set[str]] = defaultdict(set)
    for name in graph.outputs:
        sharing[graph.storage(name)].add(name)
    return tuple(_source(graph, name, sharing) for name in graph.outputs)


def _source(graph: ProgramGraph, name: str, sharing: Mapping[str, set[str]]) -> str:
    owner = graph.storage(name)
    if len(sharing[owner]) == 1 or view_path(graph, owner, name) is None:
        return name
    return owner


def view_path(graph: ProgramGraph, owner: str, name: str) -> tuple[View, ...] | None:
    """Return the ops that lead from a result to a value that shares its storage.

    Args:
        graph: The program.
        owner: The result that owns the storage.
        name: A view of it, or the result of an op that writes it in place.

    Returns:
        Each op with its result on the way; None where the way starts with an input or
        leads through a body, or where the two have different dtypes.
    """
    path: list[View] = []
    if graph.values[owner].dtype != graph.values[name].dtype:
        return None
    while True:
        maker = graph.producer.get(name)
        if name == owner and maker is not None:
            return tuple(reversed(path))
        if maker is None or maker.region:
            return None
        path.append((maker, name))
        shared = [n for n in maker.operands if graph.storage(n) == owner]
        written = [maker.operands[i] for i in maker.mutates]
        found = next((n for n in (*written, *shared) if n in shared), None)
        if found is None:
            return None
        name = found
