"""Cut edges: where a gradient may have a factor of its own.

They are the bridges of the undirected differentiable graph. Its nodes are values,
parameters and inputs among them, and units; each use of a value is an edge of its own,
so that a table that is used twice, or a product of a value with itself, is no bridge.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from amprewrite.unit_scaling.graph.differentiable import Differentiable
from amprewrite.unit_scaling.graph.units import Edge, Unit

if TYPE_CHECKING:
    import networkx as nx

OUTSIDE = ("outside", "")
"""Node that joins the outputs, where there are several: their gradients are given."""


def network(
    live: Differentiable,
    units: Sequence[Unit],
    closing: Iterable[tuple[str, str]] = (),
) -> "nx.MultiGraph[Any]":
    """Return the undirected differentiable graph.

    Args:
        live: The differentiable part of the program.
        units: Its units.
        closing: Pairs of values that are one: carry-out and carry-in of a loop.
    """
    import networkx as nx  # noqa: PLC0415  # slow to load

    found: nx.MultiGraph[Any] = nx.MultiGraph()
    found.add_nodes_from(("value", name) for name in live.values)
    for unit in units:
        for edge in unit.edges:
            found.add_edge(("value", edge.value), ("unit", unit.name))
        for result in unit.results:
            found.add_edge(("unit", unit.name), ("value", result))
    if len(live.outputs) > 1:
        found.add_edges_from((("value", name), OUTSIDE) for name in live.outputs)
    found.add_edges_from((("value", a), ("value", b)) for a, b in closing)
    return found


def cut_edges(
    live: Differentiable,
    units: Sequence[Unit],
    closing: Iterable[tuple[str, str]] = (),
) -> frozenset[Edge]:
    """Return the edges from values to units that are bridges; see :func:`network`."""
    import networkx as nx  # noqa: PLC0415  # slow to load

    found = network(live, units, closing)
    bridges = {frozenset(pair) for pair in nx.bridges(found)}
    return frozenset(
        edge
        for unit in units
        for edge in unit.edges
        if frozenset((("value", edge.value), ("unit", unit.name))) in bridges
    )
