"""Merge ops that compute the same of the same operands: a mask in each layer."""

from typing import Any, cast

from torch import nn
from torch.fx import Graph, Node

from amprewrite.frameworks.torch_fx.compat import operators
from amprewrite.frameworks.torch_fx.lowering.simplify.constants import computes
from amprewrite.frameworks.torch_fx.lowering.simplify.memory import Memory
from amprewrite.plan.fields import Lowering

MERGED = "merged with an equal op before"

_NUMBERS = frozenset(("_operator", "builtins", "math"))
"""Modules of functions of numbers and tuples, which change no state."""


def merge_repeats(graph: Graph, owner: nn.Module | None = None) -> tuple[Lowering, ...]:
    """Replace ops by an earlier one with the same target and operands.

    Left alone are ops with an operand or a result in memory that the graph writes to,
    and results that the caller gets, which may write to one of them. After a call of a
    function that may change the state of torch (gradients, autocast) only ops that
    follow it are merged.

    Args:
        graph: The graph; it is changed in place.
        owner: The module with its attributes.

    Returns:
        A record of all of them, if there are any.
    """
    memory = Memory(graph, owner)
    known: dict[object, Node] = {}
    names: list[str] = []
    for node in graph.nodes:
        if _may_change_state(node):
            known.clear()
        concerned = (node, *node.all_input_nodes)
        exposed = memory.is_written(concerned) or memory.is_returned(concerned)
        if exposed or not computes(node):
            continue
        key = node.target, _key(node.args), _key(node.kwargs)
        first = known.setdefault(key, node)
        if first is not node:
            node.replace_all_uses_with(first)
            graph.erase_node(node)
            names.append(node.name)
    return (Lowering("repeats", tuple(names), MERGED),) if names else ()


def _may_change_state(node: Node) -> bool:
    """Return whether a node may do something else than compute or write to values."""
    if node.op in ("placeholder", "get_attr", "output"):
        return False
    target: Any = node.target
    if operators.is_overload(target) or operators.is_higher_order(target):
        return False
    return getattr(target, "__module__", None) not in _NUMBERS


def _key(value: object) -> object:
    """Return a key of an argument, equal for equal ones.

    Numbers of two types, and zeros of two signs, are different.
    """
    if isinstance(value, Node):
        return value
    if isinstance(value, (list, tuple)):
        return tuple(map(_key, cast("list[object]", value)))
    if isinstance(value, dict):
        pairs = cast("dict[str, object]", value).items()
        return tuple((name, _key(held)) for name, held in pairs)
    return type(value), repr(value)
