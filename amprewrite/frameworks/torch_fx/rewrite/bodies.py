"""Bodies of higher-order ops: graph modules that a graph calls."""

import torch
from torch.fx import GraphModule, Node

from amprewrite.frameworks.torch_fx.aten import ops
from amprewrite.frameworks.torch_fx.executor import attribute


def region_body(node: Node) -> tuple[Node, str] | None:
    """Return the body and fence of a higher-order op that runs its body in place."""
    position, fence = ops.REGIONS.get(ops.region_name(node.target), (None, ""))
    if position is None or position >= len(node.args) or node.kwargs:
        return None
    body = node.args[position]
    return (body, fence) if isinstance(body, Node) else None


def own_body(owner: GraphModule, body: Node, entered: set[str]) -> GraphModule:
    """Return the body as a module of its own; a body called twice is copied."""
    target = str(body.target)
    found = attribute(owner, target)
    if not isinstance(found, GraphModule):
        found = GraphModule(found, found.graph)
        setattr(owner, target, found)
    if target in entered:
        copy = GraphModule(found, torch.fx.Graph())
        copy.graph.output(copy.graph.graph_copy(found.graph, {}))
        target = f"{target}_{len(entered)}"
        setattr(owner, target, copy)
        body.target, found = target, copy
    entered.add(target)
    return found
