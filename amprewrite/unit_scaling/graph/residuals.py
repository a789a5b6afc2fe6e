"""Residual additions: a sum of a value and of a branch that was computed from it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from amprewrite.passes.analysis.additions import residual_adds
from amprewrite.unit_scaling.graph.cut_edges import network
from amprewrite.unit_scaling.graph.differentiable import Closing, Differentiable
from amprewrite.unit_scaling.graph.units import Edge, Unit

if TYPE_CHECKING:
    import networkx as nx


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
    live: Differentiable,
    units: Sequence[Unit],
    cut: frozenset[Edge],
    closing: Closing = (),
) -> tuple[Residual, ...]:
    """Return the residual additions of a program through which gradients pass.

    Args:
        live: The differentiable part of the program.
        units: Its units.
        cut: Its cut edges.
        closing: Carries of its loops.
    """
    uncut = network(live, units, closing)
    uncut.remove_edges_from(
        [(("value", edge.value), ("unit", edge.unit)) for edge in cut]
    )
    adds = {add.op.name: add for add in residual_adds(live.graph)}
    found: list[Residual] = []
    for unit in units:
        add = adds.get(unit.ops[-1].name)
        if add is None or unit.is_region or unit.is_of_loss:
            continue
        if len(unit.edges) != 2:  # noqa: PLR2004  # both operands
            continue
        entries = _entries(uncut.copy(), units, unit, add.branch, live.outputs)
        found.append(Residual(unit.name, add.branch, add.skip, entries))
    return tuple(found)


def _entries(
    graph: "nx.MultiGraph[Any]",
    units: Sequence[Unit],
    add: Unit,
    branch: int,
    outputs: Sequence[str],
) -> tuple[Edge, ...]:
    """Return the uses of the skip by the branch, if it is joined with nothing else."""
    import networkx as nx  # noqa: PLC0415  # slow to load

    op = add.ops[-1]
    skip, made = ("value", op.operands[1 - branch]), ("value", op.operands[branch])
    graph.remove_edges_from([(made, ("unit", add.name))])
    graph.remove_node(skip)
    inside = nx.node_connected_component(graph, made)
    if ("unit", add.name) in inside:
        return ()
    if any(("value", name) in inside for name in outputs):
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
