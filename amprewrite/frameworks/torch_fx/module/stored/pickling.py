"""Graphs as plain data, so that a converted module can be pickled.

torch.fx pickles a graph as code and traces it again, which renames its nodes; plans and
verify refer to nodes by name.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node

from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.torch_fx.compat import module_parts, operators, pytrees
from amprewrite.frameworks.torch_fx.module.stored.metadata import StoredMetadata
from amprewrite.frameworks.torch_fx.rewrite import fp8_operators

OWN = (fp8_operators.FP8_DOT, fp8_operators.QUANTISE)
"""Operators that the writer inserts: importing them here registers them to be found."""


@dataclass(frozen=True)
class NodeName:
    """Placeholder for a node among the arguments of another."""

    name: str


@dataclass(frozen=True)
class OpName:
    """Placeholder for an operator: ``aten.add.Tensor``, ``higher_order.cond``."""

    name: str

    def found(self) -> Any:
        """Return the operator.

        Raises:
            UnsupportedError: This process has no such operator.
        """
        found: Any = torch.ops
        try:
            for part in self.name.split("."):
                found = getattr(found, part)
        except AttributeError as error:
            msg = (
                f"the stored program calls {self.name}, which is not registered here; "
                f"import the library that registers it, and load again"
            )
            raise UnsupportedError(msg) from error
        return found


@dataclass(frozen=True)
class StoredGraph:
    """The nodes of a graph, in order, with its calling convention.

    Attributes:
        nodes: Kind, name, target and arguments of each.
        call: Names of the inputs, and the structures of inputs and outputs.
        metadata: Values and marks of the nodes, by which a program is lowered.
    """

    nodes: tuple[tuple[str, str, Any, Any], ...]
    call: tuple[Any, Any, Any] | None = None
    metadata: StoredMetadata = field(default_factory=StoredMetadata)

    @classmethod
    def of(cls, graph: Graph) -> "StoredGraph":
        """Return ``graph`` as plain data."""
        nodes = [(n.op, n.name, n.target, (n.args, n.kwargs)) for n in graph.nodes]
        kept = tuple(pytrees.map_arguments(nodes, _stored))
        metadata = StoredMetadata.of(graph)
        structure = pytrees.call_structure(graph)
        if structure is None:
            return cls(kept, None, metadata)
        names, *specs = structure
        return cls(kept, (names, *map(pytrees.structure_of, specs)), metadata)

    def graph(self) -> Graph:
        """Return the graph rebuilt from the data."""
        graph, made = Graph(), dict[str, Node]()

        def found(part: Any) -> Any:
            if isinstance(part, NodeName):
                return made[part.name]
            return part.found() if isinstance(part, OpName) else part

        for op, name, target, arguments in self.nodes:
            args, kwargs = pytrees.map_arguments(arguments, found)
            made[name] = graph.create_node(op, found(target), args, kwargs, name)
        if self.call is not None:
            names, *structures = self.call
            pytrees.set_call_structure(graph, names, *structures)
        self.metadata.restore(graph)
        return graph


def _stored(part: Any) -> Any:
    if isinstance(part, Node):
        return NodeName(part.name)
    if operators.is_higher_order(part):
        return OpName(f"higher_order.{part.name()}")
    return OpName(str(part)) if operators.is_overload(part) else part


@dataclass(frozen=True)
class StoredBody:
    """Graph of a branch, a loop, a checkpoint or another region, with its tensors.

    Attributes:
        graph: The graph.
        reads: Tensors and bodies by the names by which the graph reads them.
    """

    graph: StoredGraph
    reads: Mapping[str, "StoredBody | torch.Tensor"]

    @classmethod
    def of(cls, body: GraphModule) -> "StoredBody":
        """Return ``body`` as plain data."""
        reads: dict[str, StoredBody | torch.Tensor] = {}
        for node in body.graph.find_nodes(op="get_attr"):
            name = str(node.target)
            held: Any = body
            for part in name.split("."):
                held = getattr(held, part)
            reads[name] = cls.of(held) if isinstance(held, GraphModule) else held
        return cls(StoredGraph.of(body.graph), reads)

    def body(self) -> GraphModule:
        """Return the body rebuilt from the data."""
        held: dict[str, Any] = {
            name: read.body() if isinstance(read, StoredBody) else read
            for name, read in self.reads.items()
        }
        return GraphModule(held, self.graph.graph())


def without_bodies(holder: nn.Module) -> tuple[nn.Module, dict[str, StoredBody]]:
    """Return a module without its bodies, and these as plain data by their names.

    Args:
        holder: A module that holds bodies as submodules; it stays as it is.
    """
    children: Any = dict(module_parts.children(holder))
    bodies = {n: c for n, c in children.items() if isinstance(c, GraphModule)}
    if not bodies:
        return holder, {}
    made = copy.copy(holder)
    kept = {name: child for name, child in children.items() if name not in bodies}
    vars(made)["_modules"] = kept
    return made, {name: StoredBody.of(body) for name, body in bodies.items()}
