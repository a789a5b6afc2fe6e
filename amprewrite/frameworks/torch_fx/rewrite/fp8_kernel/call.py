"""Write matrix products of a graph as calls of the operator for 8 bits."""

from typing import Any

import torch
from torch.fx import Node

from amprewrite.frameworks.torch_fx.aten.arguments import argument
from amprewrite.frameworks.torch_fx.rewrite.fp8_kernel.fp8_dot import OPERATOR
from amprewrite.frameworks.torch_fx.rewrite.fp8_kernel.product import check_device
from amprewrite.plan import Decision

aten = torch.ops.aten


def call_kernel(node: Node, decision: Decision) -> None:
    """Make ``node``, a matrix product, a call of the operator, in place.

    Raises:
        UnsupportedError: Its device has no products of 8 bits.
    """
    check_device(node.meta["val"].device)
    given: tuple[Any, ...]
    if node.target is aten.linear.default:
        names = ("input", "weight", "bias")
        given, turned = tuple(argument(node, name) for name in names), False
    else:
        given, turned = (*node.args, None), True
    how = decision.forward, decision.backward, decision.scaling
    node.target = OPERATOR
    node.args, node.kwargs = (*given, *how, turned), {}
