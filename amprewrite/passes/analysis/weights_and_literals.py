"""Facts about values: weights, weak values, literals out of range, fillers."""

from collections.abc import Iterator, Mapping
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
    """Return values made with a finite literal beyond the range of ``low``.

    An additive mask of finfo(float32).min is one: a plain cast would make it -inf, and
    a fully masked row NaN in softmax. Casts of these values saturate.
    """
    largest = format_of(low).max
    moving = (FOLLOW, PROMOTE, KEEP)
    extreme: set[str] = set()
    for op in graph.ops:
        carries = not extreme.isdisjoint(op.operands)
        if any(largest < abs(x) < inf for x in op.literals) or (
            carries and classes[op.name].op_class in moving
        ):
            extreme.update(op.results)
    return extreme


def lost_literals(op: Op, low: str) -> Iterator[float]:
    """Yield the literals of ``op`` that do not survive ``low``: 1e-8 in float16."""
    return (x for x in op.literals if not survives(low, x))
