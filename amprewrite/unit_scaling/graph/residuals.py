"""Residual additions: a sum of a value and of a branch that was computed from it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from amprewrite.unit_scaling.graph.cut_edges import network
from amprewrite.unit_scaling.graph.differentiable import Differentiable
from amprewrite.unit_scaling.graph.units import Edge, Unit

CONTRACTIONS = frozenset({"contraction", "convolution", "attention", "recurrent"})
"""Groups of ops of which a branch has one; a sum without is arithmetic."""


@dataclass(frozen=True)
class Residual:
    """One residual addition.

    Attributes:
        unit: Name of the addition.
        branch: Index of the operand that the branch made.
        skip: Index of the other one.
        entries: Uses by which the branch starts from the skip, where nothing else leads
            in or out: gradients get the weight of the branch there. Empty where the
            branch is joined with others; the weight then stands at the sum both ways.
    """

    unit: str
    branch: int
    skip: int
    entries: tuple[Edge, ...] = ()


def find_residuals(
    live: Differentiable, units: Sequence[Unit], cut: frozenset[Edge]
) -> tuple[Residual, ...]:
    """Return the residual additions of a program.

    The skip is an ancestor of the branch, with a contraction between. Where it is the
    sum of another residual (x + attention(x) + mlp(x)), the skip of that counts too.
    """
    below = _contracted_ancestors(live)
    found: list[Residual] = []
    carried: dict[str, frozenset[str]] = {}
    for unit in units:
        op = unit.ops[-1]
        if op.canonical != "add" or unit.is_region or len(unit.edges) != 2:  # noqa: PLR2004  # both operands
            continue
        for branch, skip in ((1, 0), (0, 1)):
            value = op.operands[skip]
            skips = carried.get(value, frozenset()) | {value}
            if skips & below.get(op.operands[branch], frozenset()):
                entries = _entries(live, units, cut, unit, branch)
                found.append(Residual(unit.name, branch, skip, entries))
                carried[op.results[0]] = skips
                break
    return tuple(found)


def _contracted_ancestors(live: Differentiable) -> Mapping[str, frozenset[str]]:
    """Return for each value the ancestors with a contraction on the way."""
    all_of: dict[str, frozenset[str]] = {}
    found: dict[str, frozenset[str]] = {}
    for op in live.ops:
        used = [name for name in op.operands if name in live.values]
        none: frozenset[str] = frozenset()
        ancestors = none.union(used, *(all_of.get(name, none) for name in used))
        contracted = none.union(*(found.get(name, none) for name in used))
        if op.traits.group in CONTRACTIONS:
            contracted = ancestors
        for result in op.results:
            all_of[result], found[result] = ancestors, contracted
    return found


def _entries(
    live: Differentiable,
    units: Sequence[Unit],
    cut: frozenset[Edge],
    add: Unit,
    branch: int,
) -> tuple[Edge, ...]:
    """Return the uses of the skip by the branch, if it is joined with nothing else."""
    import networkx as nx  # noqa: PLC0415  # slow to load

    op = add.ops[-1]
    skip, made = ("value", op.operands[1 - branch]), ("value", op.operands[branch])
    graph = network(live, units)
    graph.remove_edges_from(
        [(("value", edge.value), ("unit", edge.unit)) for edge in cut]
    )
    graph.remove_edges_from([(made, ("unit", add.name))])
    graph.remove_node(skip)
    inside = nx.node_connected_component(graph, made)
    if ("unit", add.name) in inside:
        return ()
    if any(("value", name) in inside for name in live.outputs):
        return ()
    producers = [unit.name for unit in units if skip[1] in unit.results]
    if any(("unit", name) in inside for name in producers):
        return ()  # the branch also reads what the skip was computed from
    return tuple(
        edge
        for unit in units
        for edge in unit.edges
        if ("value", edge.value) == skip and ("unit", unit.name) in inside
    )
