"""Fingerprint of a program, as readable lines, to recognise it later."""

from collections.abc import Iterator

from amprewrite.ir import ProgramGraph, Value
from amprewrite.plan.validation.program_lines import (
    EndLine,
    LineValue,
    line_text,
    value_text,
)


def fingerprint(graph: ProgramGraph) -> tuple[str, ...]:
    """Return one line for each op, in order, and one for the outputs.

    An op's line has its name, its native name, its operands and its results, each with
    dtype and rank. Extents are left out, so that a plan fits other batch sizes.
    """
    texts = {  # each is read often
        name: value_text(name, value.dtype, len(value.shape), _kind(value))
        for name, value in graph.values.items()
    }
    ops = [
        line_text(
            op.name,
            op.native or op.canonical,
            ", ".join([texts[name] for name in op.operands]),
            ", ".join([texts[name] for name in op.results]),
            op.region,
        )
        for op in graph.ops
    ]
    return (*ops, str(EndLine(_values(graph, graph.outputs), graph.states)))


def _values(graph: ProgramGraph, names: tuple[str, ...]) -> tuple[LineValue, ...]:
    return tuple(_value(graph, name) for name in names)


def _value(graph: ProgramGraph, name: str) -> LineValue:
    value = graph.values[name]
    return LineValue(name, value.dtype, len(value.shape), _kind(value))


def _kind(value: Value) -> str:
    return "" if value.kind == "result" else value.kind


def first_difference(
    found: tuple[str, ...], planned: tuple[str, ...]
) -> tuple[str, str, str] | None:
    """Return the first difference of two fingerprints: the name, and both lines.

    Args:
        found: Fingerprint of a program.
        planned: Fingerprint of the program that a plan was made for.

    Returns:
        None if they are equal. A missing line is given as ``nothing``.
    """
    for one, other in _pairs(found, planned):
        if one != other:
            name = (one or other).partition(" ")[0]
            return name, one or "nothing", other or "nothing"
    return None


def _pairs(
    found: tuple[str, ...], planned: tuple[str, ...]
) -> Iterator[tuple[str, str]]:
    count = max(len(found), len(planned))
    for index in range(count):
        one = found[index] if index < len(found) else ""
        yield one, planned[index] if index < len(planned) else ""
