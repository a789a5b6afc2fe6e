"""Compute values of a graph from its constants."""

from typing import Any

import torch
from torch import nn
from torch.fx import Node
from torch.fx.node import map_arg


def value_of(node: Node, owner: nn.Module, known: dict[Node, Any]) -> Any:
    """Return the value of a node that depends on attributes and no input.

    Args:
        node: The node.
        owner: The module with the attributes of the graph.
        known: Values that were computed before; new ones are added.
    """
    below = [node]
    with torch.inference_mode(mode=False), torch.no_grad():
        while below:
            last = below[-1]
            missing = [n for n in last.all_input_nodes if n not in known]
            if last in known or not missing:
                below.pop()
                if last not in known:
                    known[last] = _computed(last, owner, known)
            below += missing
    return known[node]


def _computed(node: Node, owner: nn.Module, known: dict[Node, Any]) -> Any:
    if node.op == "get_attr":
        return attribute_of(owner, node)
    function: Any = node.target
    args: Any = map_arg(node.args, lambda n: known[n])
    kwargs: Any = map_arg(node.kwargs, lambda n: known[n])
    return function(*args, **kwargs)


def attribute_of(owner: nn.Module, node: Node) -> Any:
    """Return the attribute that a ``get_attr`` node reads.

    Args:
        owner: The module with the attributes of the graph.
        node: The node.
    """
    path, _, name = str(node.target).rpartition(".")
    return getattr(owner.get_submodule(path), name)
