"""One op of a captured program with its arguments, as rules read them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from amprewrite.frameworks.torch_fx.aten.arguments import argument
from amprewrite.frameworks.torch_fx.compat import operators
from amprewrite.frameworks.torch_fx.rewrite.read import Reading, held, occurrences
from amprewrite.ir import Op, ProgramGraph
from amprewrite.unit_scaling.graph import Differentiable, extent
from amprewrite.unit_scaling.program import OpCall


@dataclass(frozen=True)
class Call(OpCall):
    """One op, with the facts that its rule needs.

    Attributes:
        op: The op.
        node: Its node.
        reading: The program.
        live: The part of it that is differentiated.
    """

    op: Op
    node: Node
    reading: Reading
    live: Differentiable

    @property
    def graph(self) -> ProgramGraph:
        """The program."""
        return self.reading.graph

    @property
    def differentiable(self) -> Differentiable:
        """The part of the program that is differentiated."""
        return self.live

    def argument(self, name: str) -> Any:
        """Return an argument by its name in the schema."""
        return argument(self.node, name)

    def index(self, name: str) -> int | None:
        """Return the operand index of a tensor argument; None if it is not given."""
        position = 0
        named = zip(operators.formals(self.node.target), self.node.args, strict=False)
        given = [(formal.name, arg) for formal, arg in named]
        for formal, arg in (*given, *self.node.kwargs.items()):
            inside: list[Node] = []
            torch.fx.map_arg(arg, inside.append)
            count = sum(len(list(held(self.reading.leaves.get(n)))) for n in inside)
            if formal == name:
                return position if count else None
            position += count
        return None

    @property
    def result(self) -> tuple[Any, ...]:
        """The extents of the first result, as those of values made before it."""
        graph = self.graph
        known: dict[str, tuple[str, int]] = {}
        before = (graph.values[name] for name in self.op.operands)
        for value in (*before, *graph.values.values()):
            for axis, size in enumerate(value.shape):
                if isinstance(size, str):
                    known.setdefault(size, (value.name, axis))
        sizes = graph.values[self.op.results[0]].shape
        return tuple(d if isinstance(d, int) else extent(*known[d]) for d in sizes)


def operand_nodes(reading: Reading, node: Node) -> Sequence[Node | None]:
    """Return for each operand of an op the node; None where a node has several."""
    found: list[Node | None] = []
    for used in occurrences(node):
        names = list(held(reading.leaves.get(used)))
        found += [used] if len(names) == 1 else [None] * len(names)
    return found
