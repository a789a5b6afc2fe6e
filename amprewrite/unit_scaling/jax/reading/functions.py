"""Put functions that were found in the place of the ops that they are written with."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amprewrite.frameworks.jaxpr.compat import tracers
from amprewrite.frameworks.jaxpr.program.program import Number, Step
from amprewrite.ir import Op, ProgramGraph
from amprewrite.unit_scaling.graph.units import Differentiable, differentiable
from amprewrite.unit_scaling.jax.reading.evaluate import Evaluator
from amprewrite.unit_scaling.jax.reading.program import (
    UNIFORM,
    Reading,
    Slice,
    Slicer,
    is_elementwise,
)

# Functions of rows, known by their values: softmax, norms, cross entropy.
#
# A slice of the program is run on Gaussian numbers, with integers (targets) of 0, and
# compared with each function. However it is written, it is the function that it equals.

Array = NDArray[Any]

SEED = 1472
NEAR = 2e-3
"""Largest difference: norms have an epsilon, and float32 a rounding."""
ENDS = frozenset({"add", "cat", "div", "exp", "gather", "log", "mul", "sub", "sum"})
"""Canonical names of the ops that may be the last of a function of rows."""
LARGEST = 2**24
"""Elements of a root above which a slice is not looked at: it sums over a batch."""
REDUCES = frozenset({"argmax", "reduce_max", "reduce_sum", "reduce_min"})


@dataclass(frozen=True)
class RowFunction:
    """A slice that is a known function of rows.

    Attributes:
        slice: The slice.
        name: Name of the function.
        size: Extent of a row.
    """

    slice: Slice
    name: str
    size: int


def find_row_functions(slicer: Slicer) -> list[RowFunction]:
    """Return the functions of rows in a program; none has a part of another one."""
    known: dict[Any, tuple[int, str, int] | None] = {}
    found: list[RowFunction] = []
    for op in slicer.live.ops:
        if op.canonical in ENDS or op.native == "custom_jvp_call":
            match = _match(slicer, op, known)
            if match is not None:
                found.append(match)
    found.sort(key=lambda f: -len(f.slice.members))
    taken, chosen = set[str](), list[RowFunction]()
    for function in found:
        if taken.isdisjoint(function.slice.members):
            taken |= function.slice.members
            chosen.append(function)
    return chosen


def _match(
    slicer: Slicer, last: Op, known: dict[Any, tuple[int, str, int] | None]
) -> RowFunction | None:
    """Return the function that ends at an op, with the farthest root."""
    slices = [s for s in slicer.ending_at(last) if _steps(slicer.reading, s)]
    if not slices:
        return None
    kept = _reduced(slicer.reading, slices[-1])
    if not kept:
        return None
    key = _key(slicer.reading, slices)
    if key not in known:
        known[key] = _find(slicer.reading, slices, kept)
    match = known[key]
    if match is None:
        return None
    index, name, size = match
    return RowFunction(slices[index], name, size)


def _steps(reading: Reading, part: Slice) -> list[Step]:
    """Return the steps of a slice, those inside of custom functions too."""
    found: dict[str, Step] = {}
    waiting = list(reading.graph.op_by_name[part.exit].results)
    stops = {part.root, part.gain}
    while waiting:
        name = waiting.pop()
        if name in stops:
            continue
        stops.add(name)
        if name in reading.same:
            atom = reading.same[name]
            waiting += [atom] if isinstance(atom, str) else []
        elif step := reading.made_by.get(name):
            found[step.name] = step
            waiting += [a for a in step.operands if isinstance(a, str)]
    return list(found.values())


def _reduced(reading: Reading, part: Slice) -> set[int]:
    """Return the extents that the reductions of a slice sum over."""
    found: set[Any] = set()
    for step in _steps(reading, part):
        if step.primitive in REDUCES:
            shape = step.eqn.invars[0].aval.shape
            found |= {shape[axis] for axis in step.eqn.params["axes"]}
    return {extent for extent in found if isinstance(extent, int) and extent > 1}


def _axes(reading: Reading, part: Slice, rank: int) -> set[tuple[int, ...]]:
    """Return the axes of the root that the reductions of a slice sum over."""
    return {
        tuple(sorted(int(axis) for axis in step.eqn.params["axes"]))
        for step in _steps(reading, part)
        if step.primitive in REDUCES and len(step.eqn.invars[0].aval.shape) == rank
    }


def _key(reading: Reading, slices: list[Slice]) -> Any:
    """Return the key of a slice: its ops, their connections and the roots."""
    numbers: dict[Any, int] = {}

    def number(atom: Any) -> Any:
        if not isinstance(atom, str):
            return (str(atom.value), atom.dtype)
        atom = _same(reading, atom)
        return numbers.setdefault(atom, len(numbers))

    farthest = slices[-1]
    number(farthest.root)
    number(farthest.gain)
    lines = [
        (
            step.primitive,
            str(sorted((k, str(v)) for k, v in step.eqn.params.items())),
            tuple(map(number, step.operands)),
            tuple(map(number, step.results)),
            tuple(str(reading.program.avals[name]) for name in step.results),
        )
        for step in _steps(reading, farthest)
    ]
    return tuple(lines), tuple((number(s.root), bool(s.gain)) for s in slices)


def _same(reading: Reading, name: str) -> Any:
    found: Any = name
    while isinstance(found, str) and found in reading.same:
        found = reading.same[found]
    return found


def _find(
    reading: Reading, slices: list[Slice], kept: set[int]
) -> tuple[int, str, int] | None:
    """Return index, name and size of a row of the slice that is a known function.

    The farthest root is taken: softmax(x - max(x)) is the softmax of x.
    """
    farthest = slices[-1]
    rng = np.random.default_rng(SEED)
    avals = reading.program.avals
    (end,) = reading.graph.op_by_name[farthest.exit].results

    def small(extent: Any) -> int:
        return extent if extent in kept else 1

    def drawn(name: str) -> Array:
        shape = tuple(map(small, avals[name].shape))
        return rng.standard_normal(shape, dtype=np.float32)

    roots = [s.root for s in slices]
    names = [name for name in (farthest.root, farthest.gain) if name]
    inputs = {name: drawn(name) for name in names}
    if inputs[farthest.root].size > LARGEST:
        return None

    values = Evaluator(reading, inputs, np.float32, small)
    with tracers.evaluated_now():
        try:
            y, *xs = (np.asarray(values.value(name)) for name in [end, *roots])
        except (TypeError, ValueError):  # shapes that cannot be made smaller
            return None
    gain = inputs.get(farthest.gain)
    for index in reversed(range(len(slices))):
        x = xs[index]
        for axes in _axes(reading, slices[index], x.ndim):
            size = int(np.prod([x.shape[axis] for axis in axes]))
            with np.errstate(invalid="ignore"):  # masked logits are infinite
                found = list(_functions(x, axes))
            for name, wanted in found:
                with_gain = slices[index].gain and name in NORMS
                if slices[index].gain and not with_gain:
                    continue
                expected = _times(wanted, gain) if with_gain else wanted
                if expected is not None and _alike(y, expected):
                    return index, name, size
    return None


def _times(x: Array, gain: Any) -> Array | None:
    """Return a product; None if the gain is one of another axis."""
    try:
        return x * gain
    except ValueError:
        return None


NORMS = frozenset({"layer_norm", "rms_norm"})


def _functions(x: Array, axes: tuple[int, ...]) -> Iterator[tuple[str, Array]]:
    """Yield each function of rows with its value."""
    size = int(np.prod([x.shape[axis] for axis in axes]))
    if size < 2:  # noqa: PLR2004  # there is nothing to compare
        return
    centred = x - x.mean(axes, keepdims=True)
    yield "layer_norm", centred / centred.std(axes, keepdims=True)
    yield "rms_norm", x / np.sqrt(np.square(x).mean(axes, keepdims=True))
    if len(axes) != 1:
        return
    axis = axes[0]
    high = x.max(axis, keepdims=True)
    logs = x - high - np.log(np.exp(x - high).sum(axis, keepdims=True))
    yield "softmax", np.exp(logs)
    yield "log_softmax", logs
    picked = logs.take(0, axis)
    yield "cross_entropy", -picked
    yield "cross_entropy", picked


def _alike(found: Array, wanted: Array) -> bool:
    """Return whether arrays are equal but for extents of 1."""
    a, b = found.squeeze(), wanted.squeeze()
    return a.shape == b.shape and bool(np.allclose(a, b, rtol=NEAR, atol=NEAR * 1e-1))


DROPOUT, MEAN, FUNCTION = "dropout", "mean", "function"
"""Names of functions that are known by their ops."""


@dataclass(frozen=True)
class Function:
    """A function that several ops, or a custom rule, compute.

    Attributes:
        name: Its name; ``function`` for any other one of single numbers.
        members: Names of the ops.
        size: Extent of a row; of a mean the number of its terms.
        share: Share of elements that dropout keeps.
    """

    name: str
    members: frozenset[str]
    size: Any = 0
    share: float = 1.0


@dataclass(frozen=True)
class Functional:
    """A program in which functions are single ops.

    Attributes:
        reading: The program; its graph has the functions.
        live: The part that is differentiated.
        functions: The functions by name of the op.
        uniform: Values that are one number everywhere.
        slicer: Looks for slices in the program before.
    """

    reading: Reading
    live: Differentiable
    functions: Mapping[str, Function]
    uniform: frozenset[str]
    slicer: Slicer

    @property
    def elementwise(self) -> frozenset[str]:
        """Names of the ops that are functions of single numbers."""
        found = self.functions.items()
        return frozenset(name for name, f in found if f.name == FUNCTION)


def with_functions(reading: Reading) -> Functional:
    """Return a program with its functions in the place of their ops."""
    slicer = Slicer(reading, differentiable(reading.graph, reading.closing))
    slices: dict[str, Slice] = {}
    functions: dict[str, Function] = {}
    taken = set[str]()
    for row in find_row_functions(slicer):
        slices[row.slice.exit] = row.slice
        functions[row.slice.exit] = Function(row.name, row.slice.members, row.size)
        taken |= row.slice.members
    for op in slicer.live.ops:
        found = _by_ops(slicer, op)
        if found is None or not taken.isdisjoint(found[0].members):
            continue
        for inner in found[0].members & functions.keys():
            del slices[inner], functions[inner]
        slices[op.name], functions[op.name] = found
    graph = _contracted(reading.graph, slices, functions, slicer.uniform)
    live = differentiable(graph, reading.closing)
    whole = replace(reading, graph=graph)
    return Functional(whole, live, functions, slicer.uniform, slicer)


def _by_ops(slicer: Slicer, op: Op) -> tuple[Slice, Function] | None:
    """Return the mean, dropout, or choice by its own argument, that ends at an op."""
    if op.canonical in ("div", "mul"):
        found = _mean(slicer, op)
        if found is not None:
            return found
    if op.canonical in ("where", "mul"):
        found = _dropout(slicer, op)
        if found is not None:
            return found
    if is_elementwise(slicer.reading, op):
        operands = {name for name in op.operands if name not in slicer.uniform}
        if len(operands) == 1 and len(op.results) == 1:
            members = frozenset({op.name})
            return Slice(operands.pop(), op.name, members), Function(FUNCTION, members)
    if op.canonical == "where":
        graph = slicer.reading.graph
        for part in slicer.ending_at(op):
            ops = [graph.op_by_name[name] for name in part.members]
            if part.gain or not all(_is_of_numbers(slicer, o, part) for o in ops):
                return None
            return part, Function(FUNCTION, part.members)
    return None


def _is_of_numbers(slicer: Slicer, op: Op, part: Slice) -> bool:
    """Return whether an op of a slice is elementwise, and depends on the root alone."""
    known = slicer.uniform | {part.root}
    made = {
        result
        for name in part.members
        for result in slicer.reading.graph.op_by_name[name].results
    }
    group = op.traits.group in UNIFORM or is_elementwise(slicer.reading, op)
    return group and all(name in known | made for name in op.operands)


def _literal(slicer: Slicer, op: Op) -> float | None:
    """Return the number among the two operands of an op; None if there is none."""
    operands = slicer.reading.made_by[op.results[0]].operands
    found = [atom.value for atom in operands if isinstance(atom, Number)]
    return float(found[0]) if len(found) == 1 else None


def _mean(slicer: Slicer, op: Op) -> tuple[Slice, Function] | None:
    """Return the mean that ends at a division by, or product with, a number."""
    graph, number = slicer.reading.graph, _literal(slicer, op)
    if not number or not op.operands:  # none, or a product with 0
        return None
    total = graph.producer.get(op.operands[0])
    if total is None or total.native != "reduce_sum":
        return None
    if len(graph.users[total.results[0]]) > 1 or total.results[0] in graph.outputs:
        return None
    before, after = (graph.values[o.operands[0]] for o in (total, op))
    terms = before.elements / max(after.elements, 1)
    if abs((number if op.canonical == "div" else 1 / number) - terms) > 1e-4 * terms:
        return None
    members = frozenset({total.name, op.name})
    part = Slice(total.operands[0], op.name, members)
    return part, Function(MEAN, members, int(terms))


def _dropout(slicer: Slicer, op: Op) -> tuple[Slice, Function] | None:
    """Return the dropout that ends at a choice, or a product with a random mask."""
    graph, live = slicer.reading.graph, slicer.live
    kept = [name for name in op.operands if name in live.values]
    others = [n for n in op.operands if n not in slicer.uniform and n not in kept]
    if len(kept) != 1 or len(others) != 1 or not _is_random(graph, others[0]):
        return None
    scaled = graph.producer.get(kept[0])
    if scaled is None or scaled.canonical not in ("div", "mul"):
        return None
    number = _literal(slicer, scaled)
    if number is None or len(graph.users[kept[0]]) > 1 or len(scaled.operands) != 1:
        return None
    share = number if scaled.canonical == "div" else 1 / number
    if not 0 < share < 1:
        return None
    members = frozenset({scaled.name, op.name})
    part = Slice(scaled.operands[0], op.name, members)
    return part, Function(DROPOUT, members, share=share)


def _is_random(graph: ProgramGraph, name: str) -> bool:
    """Return whether a value is drawn."""
    waiting, seen = [name], set[str]()
    while waiting:
        op = graph.producer.get(waiting.pop())
        if op is None or op.name in seen:
            continue
        seen.add(op.name)
        if op.traits.group == "random" or op.native.startswith(("random_", "threefry")):
            return True
        waiting += op.operands
    return False


def _contracted(
    graph: ProgramGraph,
    slices: Mapping[str, Slice],
    functions: Mapping[str, Function],
    uniform: frozenset[str],
) -> ProgramGraph:
    """Return the graph with one op for each function, and without uniform operands."""
    inner = {
        name for part in slices.values() for name in part.members if name != part.exit
    }
    ops: list[Op] = []
    for op in graph.ops:
        if op.name in slices:
            part = slices[op.name]
            operands = (part.root, part.gain) if part.gain else (part.root,)
            name = functions[op.name].name
            if name != FUNCTION:  # traits are those of the function
                op = replace(op, canonical=name, native=name)  # noqa: PLW2901
            ops.append(replace(op, operands=operands))
        elif op.name not in inner:
            operands = tuple(name for name in op.operands if name not in uniform)
            ops.append(replace(op, operands=operands, masks=(), mutates=(), reads=()))
    return ProgramGraph(graph.values, tuple(ops), graph.outputs, graph.states)
