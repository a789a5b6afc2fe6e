"""Fold values that depend on no input and no weight: masks, positions, buckets."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, Node

from amprewrite.frameworks.torch_fx.compat import operators, tensor_internals
from amprewrite.frameworks.torch_fx.executor import attribute, constant_values
from amprewrite.plan.fields import Lowering

MOST_BYTES = 8 * 2**20
"""Largest number of bytes of folded values in one program.

It is a mask of 1,448 by 1,448 positions in float32. To compute a larger one takes
little time beside the ops that read it.
"""

COMPUTED_ONCE = "computed once"

FOLDED = "folded"
"""Key in the meta of a node: its value, which was computed once."""


def fold_constants(
    graph: Graph, owner: nn.Module, constants: Collection[str]
) -> tuple[Lowering, ...]:
    """Replace values that depend on constants alone by tensors.

    A node of such a value becomes a ``get_attr`` with the tensor in its meta. A value
    is left alone if a caller could write to it: it is an output, or an op writes to it
    or to a view of it.

    Args:
        graph: The graph; it is changed in place.
        owner: The module with the attributes of the graph.
        constants: Names of attributes that nothing writes to.

    Returns:
        A record for each value, with the ops that made it and nothing else.
    """
    storages = storages_of(graph, owner)
    written = {storages[n] for node in graph.nodes for n in _written(node)}
    known = _constant_nodes(graph, constants, written, storages)
    exposed = {storages[n] for n in graph.output_node().all_input_nodes}
    last = [
        node
        for node in graph.nodes
        if node in known and node.op != "get_attr" and storages[node] not in exposed
        if any(user not in known for user in node.users)
    ]
    values = constant_values(owner, graph, last)
    tensors = [(n, values[n]) for n in last if isinstance(values[n], torch.Tensor)]
    sizes = {node: value.untyped_storage().nbytes() for node, value in tensors}
    above = {node: node.all_input_nodes for node in graph.nodes}
    folded: dict[Node, int] = {}
    left = MOST_BYTES
    for node in sorted(sizes, key=sizes.__getitem__):
        if sizes[node] > left:
            break
        left -= sizes[node]
        folded[node] = sizes[node]
        node.meta[FOLDED] = values[node]
        node.op, node.target, node.args, node.kwargs = "get_attr", FOLDED, (), {}
    gone: set[Node] = set()
    for node in reversed(graph.nodes):
        if not node.users and not _stays(node):
            graph.erase_node(node)
            if node.op == "call_function":
                gone.add(node)
    return tuple(_records(folded, above, gone))


def _records(
    folded: Mapping[Node, int], above: Mapping[Node, list[Node]], gone: set[Node]
) -> Iterator[Lowering]:
    """Yield a record for each folded value.

    Args:
        folded: Bytes by node.
        above: The operands of each node before.
        gone: The ops that were removed with them; each belongs to one record.
    """
    for node in above:
        if node not in folded:
            continue
        found, below = [node], [*above[node]]
        while below:
            operand = below.pop()
            if operand in gone:
                gone.remove(operand)
                found.append(operand)
                below += above[operand]
        names = tuple(op.name for op in reversed(found))
        yield Lowering("constants", names, COMPUTED_ONCE, folded[node])


def written_values(graph: Graph, owner: nn.Module | None = None) -> set[Node]:
    """Return the nodes with values that a graph writes to, or may write to.

    Args:
        graph: The graph.
        owner: The module with its attributes, which may share their memory.
    """
    storages = storages_of(graph, owner)
    written = {storages[n] for node in graph.nodes for n in _written(node)}
    return {node for node, storage in storages.items() if storage in written}


def written_attributes(graph: Graph, owner: nn.Module | None = None) -> set[str]:
    """Return the names of the attributes that a graph writes to, or may write to."""
    written = written_values(graph, owner)
    return {str(n.target) for n in written if n.op == "get_attr"}


def _stays(node: Node) -> bool:
    """Return whether a node without users stays: all but those that only compute."""
    if node.op in ("placeholder", "output"):
        return True
    return not computes(node) and node.op != "get_attr"


def _constant_nodes(
    graph: Graph,
    constants: Collection[str],
    written: Collection[Node],
    storages: Mapping[Node, Node],
) -> set[Node]:
    """Return the nodes that depend on constants alone.

    Args:
        graph: The graph.
        constants: Names of attributes that nothing outside of the graph writes to.
        written: Storages that the graph writes to.
        storages: The storage of each node.
    """
    found: set[Node] = set()
    for node in graph.nodes:
        if node.op == "get_attr":
            is_constant = str(node.target) in constants
        else:
            is_constant = computes(node) and found.issuperset(node.all_input_nodes)
        if is_constant and storages[node] not in written:
            found.add(node)
    return found


def computes(node: Node) -> bool:
    """Return whether an op gives the same result for the same operands each time."""
    if node.op != "call_function" or not operators.is_overload(node.target):
        return False
    pure = operators.is_pure(node.target) and "empty" not in node.target.name()
    return pure and not _written(node)


def _written(node: Node) -> list[Node]:
    """Return the operands that a node writes to, as far as it is known."""
    if node.op in ("placeholder", "get_attr", "output"):
        return []
    target: Any = node.target
    if operators.is_overload(target):
        if operators.is_mutable(target):
            return node.all_input_nodes
        return operators.written_statistics(target, node.args, node.kwargs)
    reads = node.op == "call_function" and not operators.is_higher_order(target)
    return [] if reads else node.all_input_nodes


def storages_of(graph: Graph, owner: nn.Module | None = None) -> dict[Node, Node]:
    """Return for each node one that stands for all nodes that may share its storage.

    Inputs count as apart, though a caller may give one tensor twice.

    Args:
        graph: The graph.
        owner: The module with its attributes, which may share their memory.
    """
    above: dict[Node, Node] = {}

    def top(node: Node) -> Node:
        while above[node] is not node:
            node = above[node]
        return node

    for node in graph.nodes:
        above[node] = node
        if node.op == "call_function":
            for operand in _shared(node):
                above[top(operand)] = node
    held: dict[Any, Node] = {}
    for node in graph.find_nodes(op="get_attr"):
        if owner is None or FOLDED in node.meta:
            continue
        if key := _memory_of(attribute(owner, str(node.target))):
            above[top(held.setdefault(key, node))] = top(node)
    return {node: top(node) for node in graph.nodes}


def _memory_of(value: object) -> Any:
    """Return a key of the memory of an attribute; None if it has none of its own.

    A sparse tensor has none, nor has one of a transform of ``torch.func``.
    """
    if not isinstance(value, torch.Tensor) or not tensor_internals.is_dense(value):
        return None
    try:
        return tensor_internals.storage_identity(value)
    except NotImplementedError:  # of a transform; dynamo cannot trace a question for it
        return None


def _shared(node: Node) -> Iterable[Node]:
    """Return the operands with which a result may share its storage."""
    target: Any = node.target
    if not operators.is_overload(target) or operators.results_alias(target):
        return node.all_input_nodes
    result = node.meta.get("val")
    return [
        operand
        for operand in node.all_input_nodes
        if tensor_internals.may_share_storage(result, operand.meta.get("val"))
    ]
