"""Remove ops that return their operand itself: dropout in eval mode, equal casts."""

import torch
from torch.fx import Graph, Node

from amprewrite.frameworks.torch_fx.lowering.simplify.round_trips import is_cast
from amprewrite.plan.fields import Lowering

aten = torch.ops.aten

REMOVED = "without effect removed"

_DROPOUTS = frozenset(
    (
        aten.dropout.default,
        aten.alpha_dropout.default,
        aten.feature_dropout.default,
        aten.feature_alpha_dropout.default,
    )
)
"""Ops that return their operand unless they train (at::dropout, Dropout.cpp)."""


def remove_no_ops(graph: Graph) -> tuple[Lowering, ...]:
    """Replace ops by their operand where they return it as it is.

    Between a cast and an op that promotes, a dropout keeps the two apart.

    Args:
        graph: The graph; it is changed in place.

    Returns:
        A record of all of them, if there are any.
    """
    found = [node for node in graph.nodes if _is_no_op(node)]
    for node in found:
        node.replace_all_uses_with(node.args[0])
        graph.erase_node(node)
    names = tuple(node.name for node in found)
    return (Lowering("no_ops", names, REMOVED),) if names else ()


def _is_no_op(node: Node) -> bool:
    if node.target in _DROPOUTS:
        return node.kwargs.get("train", (*node.args, None, None)[2]) is False
    if not is_cast(node):
        return False
    source, dtype = node.args
    value = source.meta.get("val") if isinstance(source, Node) else None
    return isinstance(value, torch.Tensor) and value.dtype == dtype
