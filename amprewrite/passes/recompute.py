"""Choose the values that a training step keeps, and the ops that it runs twice.

The result is plain data, a :class:`amprewrite.plan.fields.Recompute`: an
integer program weighs the bytes that derivatives keep against the bytes moved twice.

1. A program consists of *steps*, which run once more, or not, as a whole.
2. A derivative reads some operands and results of its op.
3. A *piece* is a value in one dtype: its own, or that of a cast. It is kept, or
   computed again from other pieces by its *maker*: a step of the program, or the cast.
4. A piece that the backward pass reads is kept, which costs its bytes, or its maker
   runs again, which costs the bytes that it moves and needs all pieces that it reads.
   Pieces of contractions, draws and writes can only be kept. The choice is exact for
   this price; of several choices at one price, the one that recomputes most is taken.

A region that spans many contractions would make its backward pass keep all of its
values at once, and computing it again would begin far from where it is needed. The
values that join such a region are kept instead, until every region is short.
"""

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from amprewrite.dtypes import is_float, itemsize
from amprewrite.ir import REGION_BOUNDARIES, Op, ProgramGraph
from amprewrite.ops.repeatable import repeats
from amprewrite.passes.cost.cost_model import is_view
from amprewrite.passes.placement.integer_program import (
    FULL,
    LOW,
    IntegerProgram,
    solve,
)
from amprewrite.plan import Plan
from amprewrite.plan.fields import Kept, Recompute, RecomputedRegion

# Steps: the parts of a program that run once more, or not, as a whole.


def is_repeatable(op: Op) -> bool:
    """Return whether an op may run twice: no contraction, no draw, no write.

    An op that is not known, or must not be touched, never runs twice.
    """
    if op.mutates or op.fence or not op.results:
        return False
    return repeats(op.canonical, op.traits.group)


@dataclass(frozen=True)
class Step:
    """An op, or a body with all of its ops, which runs as a whole.

    Attributes:
        ops: The ops, in program order.
        operands: Values that it reads, each once.
        results: Values that it makes and others may read.
        repeatable: Whether it may run twice.
    """

    ops: tuple[Op, ...]
    operands: tuple[str, ...]
    results: tuple[str, ...]
    repeatable: bool


def bodies(graph: ProgramGraph) -> tuple[str, ...]:
    """Return the regions with ops that are steps of their own: program and loops.

    The ops of a body that runs once (a branch, a custom rule) are one step.
    """
    entered: dict[str, int] = {}
    carries: set[str] = set()
    for op in graph.ops:
        if op.canonical == "enter":
            entered[op.region] = op.trips
        elif op.canonical == "carry":
            carries.add(op.region)
    loops = {
        op.region
        for op in graph.ops
        if op.region
        and op.canonical not in REGION_BOUNDARIES
        and (op.region in carries or op.trips > entered.get(op.region, op.trips))
    }
    return ("", *sorted(loops))


def steps_of(graph: ProgramGraph, body: str) -> list[Step]:
    """Return the steps of a body, in program order.

    Args:
        graph: The program.
        body: Its region; empty for the program itself.
    """
    prefix = f"{body}/" if body else ""
    found: dict[str, list[Op]] = {}
    for op in graph.ops:
        if op.region == body:
            found[f"op {op.name}"] = [op]
        elif op.region.startswith(prefix):
            inner = op.region[len(prefix) :].split("/")[0]
            found.setdefault(f"body {inner}", []).append(op)
    return [_step(graph, ops) for ops in found.values()]


def _step(graph: ProgramGraph, ops: list[Op]) -> Step:
    made = {name for op in ops for name in op.results}
    read = dict.fromkeys(n for op in ops for n in op.operands if n not in made)
    if len(ops) == 1:
        results = ops[0].results
    else:
        inside = {op.name for op in ops}
        results = tuple(_left(graph, ops, inside))
    rules = {op.canonical for op in ops} & {"enter", "carry", "leave"}
    repeatable = not rules and all(
        op.canonical == "boundary" or is_repeatable(op) for op in ops
    )
    repeatable &= graph.written.isdisjoint(map(graph.storage, (*read, *made)))
    return Step(tuple(ops), tuple(read), results, repeatable)


def _left(graph: ProgramGraph, ops: Iterable[Op], inside: set[str]) -> Iterator[str]:
    """Yield the results that are read outside of a body."""
    outputs = set(graph.outputs)
    for op in ops:
        for name in op.results:
            users = graph.users[name]
            if name in outputs or any(user.name not in inside for user, _ in users):
                yield name


# The values that the derivative of an op reads.

LINEAR_GROUPS = frozenset(
    (
        "average_pool",
        "cast",
        "collective_sum",
        "comparison",
        "control",
        "dropout",  # keeps a mask of its own
        "factory",
        "interpolation",
        "lookup",
        "metadata",
        "movement",
        "random",
        "rounding",
        "scatter_sum",
        "selection",
        "sign",
    )
)
"""Groups with a derivative that reads no floats: constant, or zero.

It may read indices and masks.
"""

LINEAR_OPS = frozenset(
    (
        "add",
        "sub",
        "rsub",
        "neg",
        "deg2rad",
        "rad2deg",
        "mean",
        "nanmean",
        "sum",
        "cumsum",
        "nansum",
        "sum_to_size",
        "trace",
        "add_any",
    )
)
"""Ops of other groups with such a derivative."""

BILINEAR_GROUPS = frozenset(("contraction", "convolution", "product"))
"""Groups with derivatives by one operand that read the other operands."""

BY_RESULT = frozenset(
    (
        "exp",
        "exp2",
        "tanh",
        "sigmoid",
        "logistic",
        "sqrt",
        "rsqrt",
        "reciprocal",
        "softmax",
        "log_softmax",
        "relu",
        "cbrt",
    )
)
"""Ops with a derivative that is a function of the result: exp' is exp."""

ALSO_RESULT = frozenset(("attention", "extremum", "norm", "recurrent"))
"""Groups with a derivative that reads operands and results."""


def gradient_passes(graph: ProgramGraph) -> frozenset[str]:
    """Return the float values that depend on a float input or parameter."""
    reached = {v.name for v in graph.inputs("parameter", "input") if v.is_float}
    for op in graph.ops:
        if op.canonical != "detach" and not reached.isdisjoint(op.operands):
            reached.update(name for name in op.results if graph.values[name].is_float)
    return frozenset(reached)


def read_by_derivative(
    graph: ProgramGraph, op: Op, reached: AbstractSet[str]
) -> Iterator[int | str]:
    """Yield the operands and results that the derivative of an op reads.

    Frameworks may read less. A value that they read beyond this is computed again, or
    kept, as if the forward pass alone read it.

    Args:
        graph: The program.
        op: The op.
        reached: The values that gradients pass, see :func:`gradient_passes`.

    Yields:
        Indices of operands, and names of results.
    """
    passes = [name in reached for name in op.operands]
    if not any(passes) or reached.isdisjoint(op.results):
        return
    if op.canonical in REGION_BOUNDARIES:
        return
    for index, name in enumerate(op.operands):
        if not _is_smooth(graph, name):
            yield index  # an index, a mask
    yield from _smooth_reads(graph, op, passes)


def _smooth_reads(
    graph: ProgramGraph, op: Op, passes: list[bool]
) -> Iterator[int | str]:
    """Yield the floats that a derivative reads.

    Args:
        graph: The program.
        op: The op.
        passes: For each operand, whether gradients pass it.
    """
    group = op.traits.group
    if group in LINEAR_GROUPS or op.canonical in LINEAR_OPS:
        return
    if group in BILINEAR_GROUPS or op.canonical == "mul":
        for index, name in enumerate(op.operands):
            others = passes[:index] + passes[index + 1 :]
            if _is_smooth(graph, name) and any(others):
                yield index
        return
    if op.canonical in BY_RESULT or group in ALSO_RESULT:
        yield from op.results
    if op.canonical not in BY_RESULT:
        yield from (i for i, n in enumerate(op.operands) if _is_smooth(graph, n))


def _is_smooth(graph: ProgramGraph, name: str) -> bool:
    """Return whether a value is of floats or complex numbers."""
    dtype = graph.values[name].dtype
    return is_float(dtype) or dtype.startswith("complex")


# The values of one body in the dtypes of a plan, and the ways to have them again.

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


PRICES = {"eager": 8, "compiled": 16}
"""Bytes that may be moved once more to keep one byte less, by the target of a plan.

An activation of a transformer that is read, computed and written again moves 4 to 12
times the bytes that it frees, a mean over rows of 128 moves 64 times the bytes. A
compiler fuses much of what is computed again. Op by op, a training step of GPT-2 takes
1.20 of the time without at 16, for 0.41 of float32's bytes, and 1.08 at 8, for 0.47; of
a ViT, BERT and a ResNet 1.10, 1.08 and 1.25 at 8, and up to 0.03 more at 16 (a CPU with
instructions for bfloat16, ``benchmarks.training_torch``).
"""

LONGEST = 8
"""Largest number of contractions between the first and the last step of a region."""


def with_recompute(graph: ProgramGraph, plan: Plan) -> Plan:
    """Return ``plan`` with the regions that a training step computes again.

    A plan for inference has none; a plan that has some is returned as it is.

    Args:
        graph: The program.
        plan: The plan for it.
    """
    if not plan.training or plan.recompute:
        return plan
    reached = gradient_passes(graph)
    found = [_of_body(graph, plan, body, reached) for body in bodies(graph)]
    order = graph.position
    regions = [region for part in found for region in part.regions]
    regions.sort(key=lambda region: order[region.ops[0]])
    whole = Recompute(
        kept=tuple(kept for part in found for kept in part.kept),
        regions=tuple(regions),
        bytes_before=sum(part.bytes_before for part in found),
        moved_bytes=sum(part.moved_bytes for part in found),
    )
    return replace(plan, recompute=whole)


def _of_body(
    graph: ProgramGraph, plan: Plan, body: str, reached: frozenset[str]
) -> Recompute:
    network = network_of(graph, plan, body, reached)
    price = PRICES["eager" if plan.target == "eager" else "compiled"]
    pinned: set[Piece] = set()
    while True:
        wanted, again = choose(network, pinned, price)
        groups = _connected(again)
        new = {piece for group in groups for piece in _too_long(network, group)}
        if not new - pinned:
            break
        pinned |= new
    iterations = max((op.trips for s in network.steps for op in s.ops[:1]), default=1)
    made = {piece for maker in again for piece in maker.makes}
    sizes = network.bytes
    kept = [p for p in sizes if p in wanted and p not in made]
    regions = [_region(graph, group) for group in groups]
    return Recompute(
        kept=tuple(Kept(*piece, iterations * sizes[piece]) for piece in kept),
        regions=tuple(region for region in regions if region.ops),
        bytes_before=iterations * sum(sizes[piece] for piece in network.wanted),
        moved_bytes=iterations * sum(maker.moved for maker in again),
    )


def choose(
    network: Network,
    pinned: AbstractSet[Piece] = frozenset(),
    price: int = PRICES["compiled"],
) -> tuple[set[Piece], list[Maker]]:
    """Return the cheapest pieces to have, and the makers that run again.

    Args:
        network: The pieces of a body.
        pinned: Pieces that are not computed again.
        price: Bytes that may be moved once more to keep one byte less.

    Returns:
        The pieces that the backward pass has, kept or computed again; the makers that
        run again, in program order.
    """
    program = IntegerProgram()
    index = {piece: program.new() for piece in network.bytes}
    runs = [program.new() for _ in network.makers]
    for number, maker in zip(runs, network.makers, strict=True):
        for piece in maker.makes:
            program.pay(index[piece], number, network.bytes[piece] * price)
        for piece in maker.reads:
            program.imply(number, index[piece])
        program.pay_full(number, maker.moved + OVERHEAD)
        if not maker.repeatable or not pinned.isdisjoint(maker.makes):
            program.imply(number, LOW)
    for piece in network.wanted:
        program.imply(FULL, index[piece])
    solution = solve(program)
    assert solution is not None  # all pieces may be wanted and no maker run
    wanted = {piece for piece, number in index.items() if solution.full[number]}
    again = [
        maker
        for number, maker in zip(runs, network.makers, strict=True)
        if solution.full[number]
    ]
    needed = set(network.wanted)
    for maker in again:
        needed.update(maker.reads)
    useful = [m for m in again if not needed.isdisjoint(m.makes)]
    return wanted & needed, useful


def _connected(again: Iterable[Maker]) -> list[list[Maker]]:
    """Return the makers that run again, in groups that pass values to each other."""
    import networkx as nx  # noqa: PLC0415  # slow to load

    makers = list(again)
    source = {piece: n for n, maker in enumerate(makers) for piece in maker.makes}
    joined: nx.Graph[int] = nx.Graph()
    joined.add_nodes_from(range(len(makers)))
    for number, maker in enumerate(makers):
        joined.add_edges_from((source[p], number) for p in maker.reads if p in source)
    groups = sorted(map(sorted, nx.connected_components(joined)))
    return [[makers[number] for number in group] for group in groups]


def _too_long(network: Network, group: list[Maker]) -> list[Piece]:
    """Return the pieces to keep of a region with too many contractions in its span."""
    heavy = [
        position
        for position, step in enumerate(network.steps)
        if any(op.accumulates or op.contracted is not None for op in step.ops)
        or not _is_light(step.ops[0].traits.group)
    ]

    def spanned(first: int, last: int) -> int:
        return sum(first <= position <= last for position in heavy)

    readers = _readers(network)
    ends = {
        piece: max(readers.get(piece, [maker.position]))
        for maker in group
        for piece in maker.makes
    }
    first = min(maker.position for maker in group)
    if spanned(first, max(ends.values())) <= LONGEST:
        return []
    starts = {piece: maker.position for maker in group for piece in maker.makes}
    spans = {piece: spanned(starts[piece], end) for piece, end in ends.items()}
    longest = max(spans.values())
    return [p for p, span in spans.items() if span >= min(longest, LONGEST + 1)]


def _is_light(group: str) -> bool:
    return group not in ("attention", "recurrent", "contraction", "convolution")


def _readers(network: Network) -> dict[Piece, list[int]]:
    """Return the positions of the steps that read each piece, also its casts'."""
    found: dict[Piece, list[int]] = {p: list(at) for p, at in network.wanted.items()}
    for maker in reversed(network.makers):
        for piece in maker.reads:
            at = [maker.position] if maker.step else found.get(maker.makes[0], [])
            found.setdefault(piece, []).extend(at)
    return found


def _region(graph: ProgramGraph, group: list[Maker]) -> RecomputedRegion:
    """Return the region of a group; one of casts alone has no ops."""
    made = {piece for maker in group for piece in maker.makes}
    read = dict.fromkeys(p for maker in group for p in maker.reads if p not in made)
    ops = [op for maker in group if maker.step for op in maker.step.ops]
    ops.sort(key=lambda op: graph.position[op.name])
    return RecomputedRegion(tuple(op.name for op in ops), tuple(read))
