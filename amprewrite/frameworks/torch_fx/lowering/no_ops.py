"""Remove ops that return their operand itself: dropout in eval mode, equal casts."""

import torch
from torch.fx import Graph, Node

aten = torch.ops.aten

_DROPOUTS = frozenset(
    (
        aten.dropout.default,
        aten.alpha_dropout.default,
        aten.feature_dropout.default,
        aten.feature_alpha_dropout.default,
    )
)
"""Ops that return their operand unless they train (at::dropout, Dropout.cpp)."""


def remove_no_ops(graph: Graph) -> None:
    """Replace ops by their operand where they return it as it is.

    Between a cast and an op that promotes, a dropout keeps the two apart.

    Args:
        graph: The graph; it is changed in place.
    """
    for node in list(graph.nodes):
        if _is_no_op(node):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def _is_no_op(node: Node) -> bool:
    if node.target in _DROPOUTS:
        return node.kwargs.get("train", (*node.args, None, None)[2]) is False
    if node.target is not aten.to.dtype or len(node.args) != 2 or node.kwargs:  # noqa: PLR2004  # the operand, the dtype
        return False
    source, dtype = node.args
    value = source.meta.get("val") if isinstance(source, Node) else None
    return isinstance(value, torch.Tensor) and value.dtype == dtype
