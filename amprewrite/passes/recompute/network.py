"""The values of one body in the dtypes of a plan, and the ways to have them again.

A *piece* is a value in one dtype: its own, or that of a cast. It is kept, or computed
again from other pieces by its *maker*: a step of the program, or the cast.
"""

from dataclasses import dataclass, field

from amprewrite.dtypes import itemsize
from amprewrite.ir import ProgramGraph
from amprewrite.passes.cost.moved_bytes import is_view
from amprewrite.passes.recompute.derivatives import read_by_derivative
from amprewrite.passes.recompute.steps import Step, steps_of
from amprewrite.plan import Plan

Piece = tuple[str, str]
"""Name of a value, and a dtype."""

OVERHEAD = 4096
"""Bytes that could be moved in the time that it takes to start a kernel.

It keeps the pass from computing tiny tensors again. Source: the launch of a small
kernel of torch on a CPU takes about a microsecond, in which a core moves so much.
"""


@dataclass(frozen=True, slots=True)
class Maker:
    """A step or a cast, with the pieces that it reads and makes.

    Attributes:
        position: Index of the step; of a cast, that of the step that makes its value.
        step: The step; None for a cast.
        reads: Pieces that it reads.
        makes: Pieces that it makes.
        repeatable: Whether it may run twice.
        moved: Bytes that it reads and writes.
    """

    position: int
    step: Step | None
    reads: tuple[Piece, ...]
    makes: tuple[Piece, ...]
    repeatable: bool
    moved: int


@dataclass
class Network:
    """The pieces of one body.

    Attributes:
        makers: Steps and casts, in program order.
        bytes: Size of each piece; 0 if it is alive in the backward pass anyway.
        wanted: Pieces that derivatives read, each with the positions of the steps.
        steps: The steps of the body.
    """

    makers: list[Maker] = field(default_factory=list[Maker])
    bytes: dict[Piece, int] = field(default_factory=dict[Piece, int])
    wanted: dict[Piece, list[int]] = field(default_factory=dict[Piece, list[int]])
    steps: list[Step] = field(default_factory=list[Step])


def network_of(
    graph: ProgramGraph, plan: Plan, body: str, reached: frozenset[str]
) -> Network:
    """Return the pieces of a body.

    Args:
        graph: The program.
        plan: The plan, with the dtypes of values and the casts.
        body: Region of the body; empty for the program itself.
        reached: The values that gradients pass.
    """
    return _Builder(graph, plan, reached).network(body)


class _Builder:
    def __init__(
        self, graph: ProgramGraph, plan: Plan, reached: frozenset[str]
    ) -> None:
        self.graph, self.reached = graph, reached
        self.stored = {value.name: value.dtype for value in graph.inputs()}
        self.stored.update(plan.storage)
        for op in graph.ops:
            made = plan.by_op[op.name].results
            self.stored.update(zip(op.results, made, strict=True))
        self.casts = {
            use: cast.to_dtype
            for cast in plan.casts
            for use in cast.uses
            if not cast.folded
        }
        self.found = Network()

    def network(self, body: str) -> Network:
        found = self.found
        found.steps = steps_of(self.graph, body)
        inside = {name for step in found.steps for name in step.results}
        for position, step in enumerate(found.steps):
            for name in step.operands:
                if name not in inside:
                    found.bytes.setdefault((name, self.stored[name]), 0)
            reads = self._reads(position, step)
            makes = tuple((name, self.stored[name]) for name in step.results)
            alive = all(op.canonical == "enter" for op in step.ops)
            for piece in makes:
                found.bytes[piece] = 0 if alive else self._bytes(piece)
            view = all(is_view(self.graph, op) for op in step.ops)
            moved = 0 if view else sum(map(self._bytes, (*reads, *makes)))
            found.makers.append(
                Maker(position, step, reads, makes, step.repeatable, moved)
            )
        return found

    def _reads(self, position: int, step: Step) -> tuple[Piece, ...]:
        """Return the pieces that a step reads; note those for its derivative."""
        reads: dict[Piece, None] = {}
        whole = len(step.ops) > 1
        for op in step.ops:
            wanted = set(read_by_derivative(self.graph, op, self.reached))
            for index, name in enumerate(op.operands):
                if name not in step.operands:
                    continue
                piece = self._as_read(position, name, self.casts.get((op.name, index)))
                reads[piece] = None
                if index in wanted or (whole and name in self.reached):
                    self.found.wanted.setdefault(piece, []).append(position)
            for name in wanted.intersection(step.results):
                piece = (str(name), self.stored[str(name)])
                self.found.wanted.setdefault(piece, []).append(position)
        return tuple(reads)

    def _as_read(self, position: int, name: str, dtype: str | None) -> Piece:
        """Return a value in the dtype in which it is read, with a cast if needed."""
        own = (name, self.stored[name])
        if dtype is None or dtype == own[1]:
            return own
        piece = (name, dtype)
        if piece not in self.found.bytes:
            self.found.bytes[piece] = self._bytes(piece)
            moved = self._bytes(own) + self._bytes(piece)
            repeats = self.graph.storage(name) not in self.graph.written
            self.found.makers.append(
                Maker(position, None, (own,), (piece,), repeats, moved)
            )
        return piece

    def _bytes(self, piece: Piece) -> int:
        return self.graph.values[piece[0]].elements * itemsize(piece[1])
