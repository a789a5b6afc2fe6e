"""Put functions that were found in the place of the ops that they are written with."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from amprewrite.frameworks.jaxpr.program.program import Number
from amprewrite.ir import Op, ProgramGraph
from amprewrite.unit_scaling.graph import Differentiable, differentiable
from amprewrite.unit_scaling.jax.reading.program import Reading
from amprewrite.unit_scaling.jax.reading.row_functions import find_row_functions
from amprewrite.unit_scaling.jax.reading.slices import (
    UNIFORM,
    Slice,
    Slicer,
    is_elementwise,
)

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
