"""Exact comparisons: the ops on the way to one must not round its operands.

``x == max(x, y)`` asks which operand the maximum returned; JAX differentiates a maximum
so, and the largest elements are selected so. If the maximum rounds its operands and the
comparison does not, they are no longer equal: the gradient was zero (error 0.9 in a
random program). A comparison reads values as they are stored, so that ops which only
move or select values on the way to it must not round; they may run low where their own
operands are already low. A compiler may not drop a rounding on one of the two paths
either; see ``frameworks.jaxpr.interpret.rounding``. The difference of a value and its
own maximum is such a comparison.
"""

from collections.abc import Iterable, Iterator, Mapping

from amprewrite.ir import Op, ProgramGraph
from amprewrite.plan.model import OUTPUT
from amprewrite.policy import OpClass


def compares(graph: ProgramGraph, op: Op, op_class: str) -> bool:
    """Return whether ``op`` compares floats: it reads some, and makes none."""
    if op_class != OpClass.KEEP or not op.results:
        return False
    reads, makes = _floats(graph, op.operands), _floats(graph, op.results)
    return bool(reads) and not makes


def compared_moves(graph: ProgramGraph, classes: Mapping[str, str]) -> frozenset[str]:
    """Return the ops that move or select values on the way to a comparison.

    They are follow ops, and keep ops with float results: ``topk``, a user's own cast.

    Args:
        graph: The program.
        classes: Class of every op.
    """
    return _on_the_way(graph, classes)[1]


def compared(graph: ProgramGraph, classes: Mapping[str, str]) -> frozenset[str]:
    """Return :func:`compared_moves` and the ops that compare floats.

    ``OUTPUT`` is among them if the caller may compare.

    Args:
        graph: The program.
        classes: Class of every op.
    """
    comparing, moves = _on_the_way(graph, classes)
    return comparing | moves


def _on_the_way(
    graph: ProgramGraph, classes: Mapping[str, str]
) -> tuple[frozenset[str], frozenset[str]]:
    """Return the comparing ops, and the moves on the way to them."""
    chosen = chosen_outputs(graph, classes)
    comparing = {OUTPUT} if chosen else set[str]()
    moves: set[str] = set()
    read = set(chosen)
    for op in reversed(graph.ops):
        if compares(graph, op, classes[op.name]):
            comparing.add(op.name)
            read.update(op.operands)
        elif not read.isdisjoint(op.results) and _moves(op, classes):
            moves.add(op.name)
            read.update(op.operands)
    for op, between in _from_extremum(graph, classes):
        comparing.add(op.name)
        moves.update(move.name for move in between)
    return frozenset(comparing), frozenset(moves)


def _from_extremum(
    graph: ProgramGraph, classes: Mapping[str, str]
) -> Iterator[tuple[Op, tuple[Op, ...]]]:
    """Yield the differences of a value and its own extremum, with the moves between.

    ``x - max(x)`` in a softmax needs one rounding of ``x``, as a comparison does. In a
    row masked by -1e9 the rounding in bfloat16 is 7e5: every exponential was 0.
    """
    for op in graph.ops:
        names = _floats(graph, op.operands)
        if op.canonical != "sub" or len(names) != 2:  # noqa: PLR2004  # a pair
            continue
        whole, reduced = (_moved_from(graph, classes, name) for name in names)
        source = next((name for name in reduced if name in whole), names[1])
        if any(move.traits.group == "extremum" for move in reduced[source]):
            yield op, (*whole[source], *reduced[source])


def _moved_from(
    graph: ProgramGraph, classes: Mapping[str, str], name: str
) -> dict[str, tuple[Op, ...]]:
    """Return the values that ``name`` is moved from, each with the moves since."""
    moves: tuple[Op, ...] = ()
    sources: dict[str, tuple[Op, ...]] = {name: moves}
    while (maker := graph.producer.get(name)) is not None:
        names = _floats(graph, maker.operands)
        if len(names) != 1 or classes[maker.name] != OpClass.FOLLOW:
            break
        name, moves = names[0], (*moves, maker)
        sources[name] = moves
    return sources


def chosen_outputs(graph: ProgramGraph, classes: Mapping[str, str]) -> frozenset[str]:
    """Return outputs selected among values that the caller also has, and those values.

    A caller with ``h`` and ``max(h)`` may compute ``h == max(h)``: the backward half of
    a custom derivative, a program of its own, does. The caller has the inputs, and
    other outputs that hold the same values.

    Args:
        graph: The program.
        classes: Class of every op.
    """
    outputs = _floats(graph, graph.outputs)
    reached, moving = set(outputs), list[Op]()
    for op in reversed(graph.ops):  # most ops move no value to an output
        if reached.isdisjoint(op.results) or not _moves(op, classes):
            continue
        if _floats(graph, op.results):  # integers and masks hold none of the values
            moving.append(op)
            reached.update(op.operands)
    sources: dict[str, frozenset[str]] = {}
    chosen: set[str] = set()
    for op in reversed(moving):
        names = _floats(graph, op.operands)
        held = frozenset[str]().union(*(sources.get(n, {n}) for n in names))
        sources.update(dict.fromkeys(op.results, held))
        if op.traits.chooses or not chosen.isdisjoint(names):
            chosen.update(op.results)
    inputs = {value.name for value in graph.inputs()}
    held_by: dict[str, set[str]] = {}
    for name in outputs:
        for source in sources.get(name, (name,)):
            held_by.setdefault(source, set()).add(name)
    found: set[str] = set()
    for source, names in held_by.items():
        others = len(names) > 1 or source in inputs
        if others and not chosen.isdisjoint(names):
            found |= names
    return frozenset(found)


def _floats(graph: ProgramGraph, names: Iterable[str]) -> list[str]:
    """Return those of the values that are real floats, in order."""
    return [name for name in names if graph.values[name].is_float]


def _moves(op: Op, classes: Mapping[str, str]) -> bool:
    return classes[op.name] in (OpClass.FOLLOW, OpClass.KEEP)
