"""Memory of a graph that is written to, or that its caller gets."""

from collections.abc import Iterable

from torch import nn
from torch.fx import Graph, Node

from amprewrite.frameworks.torch_fx.lowering.simplify.constants import (
    storages_of,
    written_values,
)


class Memory:
    """Values of a graph by the memory in which they lie.

    A caller may give one tensor twice, or one of the module: where the graph writes to
    an input or an attribute, it may write to all of them.
    """

    def __init__(self, graph: Graph, owner: nn.Module | None = None) -> None:
        """Look at the ops of ``graph``, and at the attributes of ``owner``."""
        self._storages = storages = storages_of(graph, owner)
        written = {storages[node] for node in written_values(graph, owner)}
        given = {
            storages[node]
            for node in graph.nodes
            if node.op in ("placeholder", "get_attr")
        }
        self._written = written if written.isdisjoint(given) else written | given
        returned = graph.output_node().all_input_nodes
        self._returned = {storages[node] for node in returned}

    def shared_by(self, node: Node) -> Node:
        """Return a node that stands for all that may lie in the memory of ``node``."""
        return self._storages[node]

    def is_written(self, nodes: Iterable[Node]) -> bool:
        """Return whether the graph may write to the memory of one of ``nodes``."""
        return any(self._storages[node] in self._written for node in nodes)

    def is_returned(self, nodes: Iterable[Node]) -> bool:
        """Return whether the caller gets the memory of one of ``nodes``."""
        return any(self._storages[node] in self._returned for node in nodes)
