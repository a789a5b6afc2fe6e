"""Rebuild views on the cast of their base, so that outputs share a storage.

A model may return a tensor and views of it, and its caller may write to one and read
another. Separate casts of each would not share a storage.
"""

import operator
from collections.abc import Sequence

import torch
from torch.fx import Node

from amprewrite.frameworks.torch_fx.compat import tensor_internals
from amprewrite.frameworks.torch_fx.compat.pytrees import pytree
from amprewrite.frameworks.torch_fx.rewrite.read import Reading
from amprewrite.plan.uses import View

aten = torch.ops.aten

VIEWED_AGAIN = "viewed again"
"""Mark of the nodes inserted here, in their ``meta["amprewrite"]``."""


def is_viewed_again(node: Node) -> bool:
    """Return whether ``node`` was inserted here."""
    return node.meta.get("amprewrite") == VIEWED_AGAIN


def view_again(
    reading: Reading, base: Node, path: Sequence[View], before: Node
) -> Node:
    """Insert the views on ``path`` with ``base`` as their base; return the last.

    Args:
        reading: The program.
        base: The base of the views, in the wanted dtype.
        path: Views, starting at the value that ``base`` is the cast of; in-place writes
            on it are part of ``base`` already.
        before: Node before which the views are inserted.
    """
    views = [(op, n) for op, n in path if not op.mutates and op.canonical != "cast"]
    if not views:  # an alias, to have the name of the written value
        with before.graph.inserting_before(before):
            whole = before.graph.call_function(aten.alias.default, (base,))
        whole.meta = {"val": base.meta["val"], "amprewrite": VIEWED_AGAIN}
        base = whole
    for op, name in views:
        node = reading.sites[op.name].node
        with before.graph.inserting_before(before):
            base = _again(node, base)
            if isinstance(reading.leaves.get(node), list):
                index = op.results.index(name)
                val = base.meta["val"][index]
                base = before.graph.call_function(operator.getitem, (base, index))
                base.meta = {"val": val, "amprewrite": VIEWED_AGAIN}
    reading.leaves[base] = path[-1][1]  # a write gives the view that it writes to
    return base


def _again(node: Node, base: Node) -> Node:
    """Insert a copy of an op with one or more views, with ``base`` as input."""
    dtype = base.meta["val"].dtype
    retyped = tensor_internals.retyped
    val = pytree.tree_map(lambda v: retyped(v, dtype), node.meta["val"])
    made = base.graph.node_copy(node)
    made.update_arg(0, base)
    made.meta = {"val": val, "amprewrite": VIEWED_AGAIN}
    return made
