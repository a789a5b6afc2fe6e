"""Leave out casts to the low dtype of values that are read in full precision alone."""

from typing import Any

import torch
from torch import nn
from torch.fx import Graph, Node

from amprewrite.frameworks.torch_fx.capture.cast_intent import CHOSEN
from amprewrite.frameworks.torch_fx.compat import operators
from amprewrite.frameworks.torch_fx.lowering.simplify.memory import Memory
from amprewrite.plan.fields import Lowering

aten = torch.ops.aten

KEPT_FULL = "not rounded between ops in full precision"

FULL = torch.float32
"""The dtype from which values are rounded, and to which they are widened again."""


def remove_round_trips(
    graph: Graph, owner: nn.Module | None = None
) -> tuple[Lowering, ...]:
    """Give readers that widen a rounded value the value before it was rounded.

    A norm of transformers ends with ``weight * x.to(input_dtype)``, with a weight in
    float32: the product promotes, and the rounding before it is one more. Casts that a
    model pins (``x.to(torch.bfloat16)``, ``x.half()``) stay, as they are meant, and so
    do those of values in memory that is written to. A value that is rounded for one
    reader is rounded for all: two casts of it are equal, and their difference is zero.

    Args:
        graph: The graph; it is changed in place.
        owner: The module with its attributes.

    Returns:
        A record of all of them, if there are any.
    """
    rounded = [node for node in graph.nodes if _rounds(node) and node.users]
    found = {n: None for n in rounded if all(_widens(user) for user in n.users)}
    if not found:
        return ()
    memory = Memory(graph, owner)
    stays = {
        memory.shared_by(node)
        for node in graph.nodes
        if _is_low(node) and is_cast(node) and node not in found
    }
    for node in found:  # without the casts, the caller would get memory of the source
        if memory.is_returned([user for user in node.users if is_cast(user)]):
            stays.add(memory.shared_by(node))
    names: list[str] = []
    for node in found:
        source: Any = node.args[0]
        casts = [user for user in node.users if is_cast(user)]
        if memory.is_written((node, source)) or memory.shared_by(node) in stays:
            continue
        node.replace_all_uses_with(source)
        for cast in casts:
            cast.replace_all_uses_with(source)
        for cast in (node, *casts):
            graph.erase_node(cast)
            names.append(cast.name)
    return (Lowering("round_trips", tuple(names), KEPT_FULL),) if names else ()


def is_cast(node: Node) -> bool:
    """Return whether a node is a cast of a tensor to a dtype, and nothing else."""
    return node.target is aten.to.dtype and len(node.args) == 2 and not node.kwargs  # noqa: PLR2004  # the operand, the dtype


def dtype_of(node: object) -> torch.dtype | None:
    """Return the dtype of the value of a node; None if it is no tensor."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    return value.dtype if isinstance(value, torch.Tensor) else None


def _rounds(node: Node) -> bool:
    """Return whether the plan, not the model, rounds a value here."""
    if not is_cast(node) or dtype_of(node.args[0]) is not FULL:
        return False
    chosen = node.meta.get("amprewrite") == "cast" or node.meta.get(CHOSEN) == "follows"
    return chosen and _is_low(node)


def _is_low(node: Node) -> bool:
    dtype = dtype_of(node)
    return dtype is not None and dtype.is_floating_point and dtype.itemsize < 4  # noqa: PLR2004  # the bytes of float32


def _widens(node: Node) -> bool:
    """Return whether an op gives the float32 that its operands promote to."""
    if dtype_of(node) is not FULL or not operators.is_overload(node.target):
        return False
    if is_cast(node):
        return True
    is_pointwise = torch.Tag.pointwise in node.target.tags
    return is_pointwise and not operators.is_mutable(node.target)
