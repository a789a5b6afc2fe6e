"""Choose the kept values: least bytes kept and moved, by an integer program.

Each piece is wanted in the backward pass, or not. A wanted piece is kept, which costs
its bytes, or its maker runs again, which costs the bytes that this moves and makes all
that it reads wanted. Pieces of contractions, draws and writes can only be kept. The
choice is exact for this price; of several the one that recomputes most is taken.

A region that spans many contractions would make its backward pass keep all of its
values at once, and computing it again would begin far from where it is needed. The
values that join such a region are kept instead, until every region is short.
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import replace

from amprewrite.ir import ProgramGraph
from amprewrite.passes.placement.integer_program import (
    FULL,
    LOW,
    IntegerProgram,
    solve,
)
from amprewrite.passes.recompute.derivatives import gradient_passes
from amprewrite.passes.recompute.network import (
    OVERHEAD,
    Maker,
    Network,
    Piece,
    network_of,
)
from amprewrite.passes.recompute.steps import bodies
from amprewrite.plan import Plan
from amprewrite.plan.memory.recompute import Kept, Recompute, RecomputedRegion

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
