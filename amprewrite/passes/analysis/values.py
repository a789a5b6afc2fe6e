"""Facts about values: weights, literals, returned values, values without data."""

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf

from amprewrite.dtypes import format_of, survives
from amprewrite.ir import Op, ProgramGraph
from amprewrite.passes.analysis.classify import USER_CAST
from amprewrite.plan.comparing import compares
from amprewrite.plan.uses import View, output_sources, view_path
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


# Find values that a caller gets and ops read, where gradients are recorded.
#
# A caller of a torch program may differentiate by a tensor that was returned, or that a
# hook kept: by a hidden state, for attributions and probes. Its gradient is complete if
# the readers read the tensor that is returned. A value that is made low and returned
# full is therefore stored full, and cast down again for readers in low precision, which
# is exact.


@dataclass(frozen=True)
class Returned:
    """Values that are returned full, and read by ops too.

    Attributes:
        values: Those that are stored full, however they are made.
        views: Ops that make one of another, as a view: they run full.
        storages: Storages of those that some op writes in place: they are full.
    """

    values: frozenset[str] = frozenset()
    views: frozenset[str] = frozenset()
    storages: frozenset[str] = frozenset()


RETURNED_VIEW = "a view of a value that is returned with it, and differentiated by"
"""Reason why such an op runs full."""

NOTHING_RETURNED = Returned()
"""Facts about a program that records no gradients."""


def find_returned(
    graph: ProgramGraph,
    outputs: tuple[str, ...],
    full: str,
    weights: Container[str] = (),
) -> Returned:
    """Return the values of ``graph`` by which a caller may differentiate.

    Args:
        graph: The program.
        outputs: Dtype in which each output is returned.
        full: The full dtype.
        weights: Values reached from weights by data movement, which are stored as the
            weights are.
    """
    if not graph.taped:
        return NOTHING_RETURNED
    paths: dict[str, dict[str, tuple[View, ...]]] = defaultdict(dict)
    for name, source, dtype in zip(
        graph.outputs, output_sources(graph), outputs, strict=True
    ):
        is_full = dtype == full and graph.is_dtype(name, full)
        if is_full and name in graph.producer and source not in weights:
            path = view_path(graph, source, name) if source != name else ()
            paths[source][name] = path or ()
    values, views, storages = set[str](), set[str](), set[str]()
    for source, members in paths.items():
        if not any(graph.users[name] for name in members):
            continue
        if graph.storage(source) in graph.written:
            storages.add(graph.storage(source))
            continue
        values.update((source, *members))
        views.update(op.name for path in members.values() for op, _ in path)
    return Returned(frozenset(values), frozenset(views), frozenset(storages))


# Values that depend on no data and must not be rounded: random draws, positions.
#
# Rounding a draw changes the probability, and the outcome, of ``uniform(key) < p``: a
# mask of dropout drawn in bfloat16 had a relative error of 5e-2 in the outputs, against
# 4e-3 in full precision. First-order errors do not show it. Ops on a draw or a position
# may also overflow: a uniform number in bfloat16 can be 1, and the normal number made
# of it is infinite (248 of 32,768 were). Low precision gains nothing here: values
# without data are computed anew at each call, or are small.

COMPUTING = (OpClass.PROMOTE, OpClass.ACCUMULATE)
"""Classes of ops that do arithmetic and may be low, except contractions."""


def exact_ops(graph: ProgramGraph, classes: Mapping[str, Match]) -> frozenset[str]:
    """Return the ops on data-independent values that feed comparisons or arithmetic.

    A comparison is a keep op with float operands and no float result: ``lt``,
    ``argmax``. Arithmetic is a deny op, or an op on data-independent values of a class
    in :data:`COMPUTING`; data movement alone may be low, since a cast commutes with it.

    Args:
        graph: The program.
        classes: Class of every op.
    """
    free = _without_data(graph)
    exact: set[str] = set()
    found: set[str] = set()
    for op in reversed(graph.ops):
        op_class = classes[op.name].op_class
        computes = op_class in COMPUTING and not free.isdisjoint(op.results)
        if computes or not exact.isdisjoint(op.results):
            found.add(op.name)
        elif op_class is not OpClass.DENY and not compares(graph, op, op_class):
            continue
        exact.update(free.intersection(op.operands))
    return frozenset(found)


def _without_data(graph: ProgramGraph) -> set[str]:
    """Return the float values that depend on no float input or parameter."""
    free = {value.name for value in graph.inputs("constant")}
    for op in graph.ops:
        floats = (name for name in op.operands if graph.values[name].is_float)
        if free.issuperset(floats):
            free.update(op.results)
    return {name for name in free if graph.values[name].is_float}
