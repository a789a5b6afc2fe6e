"""Functions of rows, known by their values: softmax, norms, cross entropy.

A slice of the program is run on Gaussian numbers, with integers (targets) of 0, and
compared with each function. However it is written, it is the function that it equals.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amprewrite.frameworks.jaxpr.compat import tracers
from amprewrite.frameworks.jaxpr.program.program import Step
from amprewrite.ir import Op
from amprewrite.unit_scaling.jax.reading.evaluate import Evaluator
from amprewrite.unit_scaling.jax.reading.program import Reading
from amprewrite.unit_scaling.jax.reading.slices import Slice, Slicer

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
