"""Views of a value, made again of its cast: outputs share a storage as the model's do.

A model may hand back a tensor and views of it, and its caller write to one and read the
other. Casts of each on its own would be tensors apart.
"""

import operator
from collections.abc import Sequence

import torch
from torch.fx import Node

from amprewrite.frameworks.torch_fx.compat import fake_tensors
from amprewrite.frameworks.torch_fx.compat.private import pytree
from amprewrite.frameworks.torch_fx.rewrite.read import Reading
from amprewrite.plan.uses import View

aten = torch.ops.aten

VIEWED_AGAIN = "viewed again"
"""Mark of the nodes that are inserted here, in their ``meta["amprewrite"]``."""


def is_viewed_again(node: Node) -> bool:
    """Return whether ``node`` was inserted here."""
    return node.meta.get("amprewrite") == VIEWED_AGAIN


def view_again(
    reading: Reading, base: Node, path: Sequence[View], before: Node
) -> Node:
    """Insert the views on ``path``, taken of ``base``, and return the last.

    Args:
        reading: The program.
        base: What is viewed, in the dtype that is wanted.
        path: From the value that ``base`` is the cast of; what ops write in place is
            in it already.
        before: Where the views are inserted.
    """
    views = [(op, n) for op, n in path if not op.mutates and op.canonical != "cast"]
    if not views:  # a node of its own, which has the name of what was written
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
    """Insert a copy of a view, or of several of one value, taken of ``base``."""
    dtype = base.meta["val"].dtype
    val = pytree.tree_map(lambda v: fake_tensors.retyped(v, dtype), node.meta["val"])
    made = base.graph.node_copy(node)
    made.update_arg(0, base)
    made.meta = {"val": val, "amprewrite": VIEWED_AGAIN}
    return made
