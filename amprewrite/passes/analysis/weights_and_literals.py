"""Facts about values: weights, weak values, literals out of range, fillers."""

from collections.abc import Iterable, Iterator, Mapping
from math import inf

from amprewrite.dtypes import format_of, survives
from amprewrite.ir import Op, ProgramGraph
from amprewrite.passes.analysis.classify import USER_CAST
from amprewrite.policy import OpClass
from amprewrite.policy.match import Match
from amprewrite.policy.model import FOLLOW, KEEP, PROMOTE


def is_transparent(op: Op, op_class: OpClass) -> bool:
    """Return whether the result of ``op`` on a weight counts as that weight.

    Data movement is bit-exact under a cast, and so is a user's cast from full to full
    (the copy of a low value in full and low again is the value).
    """
    return op_class is FOLLOW or op.canonical == USER_CAST


def weight_roots(
    graph: ProgramGraph, classes: Mapping[str, Match], full: str
) -> dict[str, frozenset[str]]:
    """Return the weights that each value is a moved copy of.

    A tensor filled with one number counts too: it can be made in any dtype.

    A lookup by indices from an input (an embedding) makes an activation. A weight is a
    full-precision parameter, buffer or constant that no op writes.
    """
    mutated = mutated_storages(graph)
    fixed = [
        value
        for value in graph.inputs("parameter", "buffer", "constant")
        if value.alias not in mutated
    ]
    static = {value.name for value in fixed}
    roots = {v.name: frozenset({v.name}) for v in fixed if v.dtype == full}
    for op in graph.ops:
        if op.traits.filler and not op.fence and not op.region:
            made = (r for r in op.results if graph.is_dtype(r, full))
            roots.update({r: frozenset({r}) for r in made if r not in mutated})
        floats = [name for name in op.operands if name in roots]
        if not floats or not is_transparent(op, classes[op.name].op_class):
            continue
        if not op.mutates and all(n in roots or n in static for n in op.operands):
            union = frozenset[str]().union(*(roots[name] for name in floats))
            stays = (r for r in op.results if graph.is_dtype(r, full))
            roots.update({r: union for r in stays if graph.storage(r) not in mutated})
    return roots


def mutated_storages(graph: ProgramGraph) -> frozenset[str]:
    """Return the storages that some op writes in place."""
    return graph.written


def weak_values(
    graph: ProgramGraph, classes: Mapping[str, Match], low: str
) -> frozenset[str]:
    """Return the weak values, which adapt to other operands.

    They are 0-d values made of literals only, and tensors filled with a number that
    survives ``low``, also moved ones. A filler with a dtype chosen by the model is
    strong: additions to ``zeros(n, dtype=float32)`` are meant to be in float32.

    Source: JAX's weak types (JEP 9407); Python numbers are arguments, not values.
    """
    weak = {value.name for value in graph.inputs("constant") if value.shape == ()}
    for op in graph.ops:
        strong = op.mutates or (op.dtype_argument and op.chosen == "pinned")
        if strong or not weak.issuperset(op.operands):
            continue
        filled = op.traits.filler and not list(lost_literals(op, low))
        moved = op.operands and classes[op.name].op_class is FOLLOW
        for result in op.results:
            scalar = graph.values[result].shape == ()
            if scalar or ((filled or moved) and result not in graph.written):
                weak.add(result)
    return frozenset(weak)


def extreme_values(
    graph: ProgramGraph, classes: Mapping[str, Match], low: str
) -> set[str]:
    """Return values made with a finite number beyond the range of ``low``.

    An additive mask of finfo(float32).min is one: a plain cast would make it -inf, and
    a fully masked row NaN in softmax. Casts of these values saturate. Where such a
    number is written in place, so are all values with that storage.
    """
    moving = (FOLLOW, PROMOTE, KEEP)
    extreme = extreme_constants(graph, low)
    for op in graph.ops:
        carries = not extreme.isdisjoint(op.operands)
        if _is_beyond(op.literals, low) or (
            carries and classes[op.name].op_class in moving
        ):
            extreme.update(op.results)
            written = {graph.storage(op.operands[index]) for index in op.mutates}
            if written:
                views = (n for n in graph.values if graph.storage(n) in written)
                extreme.update(views)
    return extreme


def extreme_constants(graph: ProgramGraph, low: str) -> set[str]:
    """Return the constants with a finite number beyond the range of ``low``."""
    return {v.name for v in graph.inputs() if _is_beyond(v.numbers, low)}


def _is_beyond(numbers: Iterable[float], low: str) -> bool:
    largest = format_of(low).max
    return any(largest < abs(x) < inf for x in numbers)


def moved_inputs(graph: ProgramGraph, classes: Mapping[str, Match]) -> set[str]:
    """Return the arguments, also moved ones: a mask among them may be finfo.min."""
    moved = {value.name for value in graph.inputs("input") if value.is_float}
    for op in graph.ops:
        floats = [name for name in op.operands if graph.values[name].is_float]
        follows = is_transparent(op, classes[op.name].op_class)
        moves = follows and not op.mutates
        if moves and floats and moved.issuperset(floats):
            moved.update(op.results)
    return moved


def lost_literals(op: Op, low: str) -> Iterator[float]:
    """Yield the literals of ``op`` that do not survive ``low``: 1e-8 in float16."""
    return (x for x in op.literals if not survives(low, x))
