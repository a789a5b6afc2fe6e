"""A layer of a graph with a weight that may be packed."""

from collections.abc import Callable
from typing import Any, NamedTuple

from torch.fx import Node

from amprewrite.frameworks.torch_fx.lowering.packing.layouts import Layout

OF_WEIGHTS = ("get_attr", "placeholder")
"""Kinds of nodes that may be weights; those of graphs of dynamo are inputs."""


class Layer(NamedTuple):
    """A layer of a graph.

    Attributes:
        node: Its node.
        operand: Its operand.
        weight: The node of its weight.
        bias: The node of its bias; None if it has none.
        layout: The layout of its weight in blocks.
        views: Nodes between the weight and the layer, which transpose it.
        run: The layer of an operand, the weight and the bias.
    """

    node: Node
    operand: Node
    weight: Node
    bias: Node | None
    layout: Layout
    views: tuple[Node, ...]
    run: Callable[[Any, Any, Any], Any]
