"""Cast a value before the copies that repeat it: keys that groups of heads share."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, Node

from amprewrite.frameworks.torch_fx.compat import operators, tensor_internals
from amprewrite.frameworks.torch_fx.lowering.simplify.memory import Memory
from amprewrite.frameworks.torch_fx.lowering.simplify.round_trips import is_cast
from amprewrite.plan.fields import Lowering

aten = torch.ops.aten

MOVED = "cast before the copies that repeat its operand"

_MOVES = frozenset(
    (
        aten.contiguous.default,
        aten.expand.default,
        aten.flatten.using_ints,
        aten.permute.default,
        aten.repeat.default,
        aten.repeat_interleave.self_int,
        aten.reshape.default,
        aten.squeeze.dim,
        aten.transpose.int,
        aten.unsqueeze.default,
        aten.view.default,
    )
)
"""Ops that move the values of one tensor by its shape, not by its memory.

A cast before them gives the same bits as one after them.
"""


def cast_early(graph: Graph, owner: nn.Module | None = None) -> tuple[Lowering, ...]:
    """Move casts to fewer bytes above the ops that repeat values.

    Where four heads read the keys of one, three quarters of the cast are saved, and the
    copy is of half the bytes. Gradients would be summed in the low dtype. Left alone
    are values in memory that is written to, those with symbolic extents, and inputs and
    views, which may have other strides in a later call.

    Args:
        graph: The graph; it is changed in place.
        owner: The module with its attributes.

    Returns:
        A record of all of them, if there are any.
    """
    narrowing = [node for node in graph.nodes if _narrows(node)]
    memory = Memory(graph, owner) if any(map(_source, narrowing)) else None
    names: list[str] = []
    for node in narrowing:
        source = _source(node)
        if source is None or memory is None:
            continue
        moves = _moves_to(node, source)
        if memory.is_written((node, source, *moves)):
            continue
        _move(node, source, moves)
        names.append(node.name)
    return (Lowering("early_casts", tuple(names), MOVED),) if names else ()


def _narrows(node: Node) -> bool:
    if not is_cast(node):
        return False
    source, cast = _value(node.args[0]), _value(node)
    if source is None or cast is None:
        return False
    return cast.dtype.is_floating_point and cast.dtype.itemsize < source.dtype.itemsize


def _value(node: object) -> torch.Tensor | None:
    """Return the fake value of a node; None without one, or with symbolic extents."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    numbers = (*value.shape, *value.stride())
    return value if all(type(number) is int for number in numbers) else None


def _has_no_gaps(value: torch.Tensor) -> bool:
    """Return whether the elements lie side by side, in some order of the extents."""
    wanted = 1
    pairs = zip(value.stride(), value.shape, strict=True)
    for stride, extent in sorted(pair for pair in pairs if pair[1] != 1):
        if stride != wanted:
            return False
        wanted *= extent
    return True


def _source(cast: Node) -> Node | None:
    """Return the smallest value above a cast, from which ops only move; None if none.

    A cast keeps the strides of a value without gaps: with others, the ops below the
    cast might have to copy where they have a view, or the other way round.
    """
    moved = _value(cast.args[0])
    if moved is None or not _has_no_gaps(moved):
        return None
    least, found = moved.numel(), None
    for node in _above(cast):
        value = _value(node)
        if value is None:
            break
        if value.numel() < least and _has_no_gaps(value) and _is_new(node):
            least, found = value.numel(), node
    return found


def _is_new(node: Node) -> bool:
    """Return whether an op made a value in memory of its own."""
    if node.op != "call_function" or not operators.is_overload(node.target):
        return False
    return not operators.results_alias(node.target)


def _above(cast: Node) -> Iterator[Node]:
    """Yield the operands of the ops that move values to a cast, from below."""
    node: Any = cast.args[0]
    while isinstance(node, Node) and node.target in _MOVES and len(node.users) == 1:
        if node.all_input_nodes != [node.args[0]]:  # an extent is computed
            return
        above: Any = node.args[0]
        yield above
        node = above


def _moves_to(cast: Node, source: Node) -> list[Node]:
    """Return the ops between ``source`` and a cast, from above."""
    node, found = cast.args[0], list[Node]()
    while isinstance(node, Node) and node is not source:
        found.append(node)
        node = node.args[0]
    return found[::-1]


def _move(cast: Node, source: Node, moves: list[Node]) -> None:
    """Put a cast below ``source``, above the ops that only move."""
    dtype: torch.dtype = cast.meta["val"].dtype
    cast.replace_all_uses_with(moves[-1])
    moves[0].prepend(cast)
    cast.args = (source, cast.args[1])
    moves[0].replace_input_with(source, cast)
    cast.meta["val"] = source.meta["val"]
    for node in (cast, *moves):
        node.meta["val"] = tensor_internals.retyped(node.meta["val"], dtype)
