"""Ops that return a view or a copy, depending on dtypes and strides.

``x.to(bfloat16)`` copies a float32 value and returns a bfloat16 one itself; ``reshape``
of a slice copies, but of a dense cast of the slice it returns a view. If the model
writes to either tensor, a copy must remain a copy.
"""

import torch
from torch.fx import Node

from amprewrite.frameworks.torch_fx.aten.ops import packet_name
from amprewrite.frameworks.torch_fx.compat import operators
from amprewrite.frameworks.torch_fx.rewrite.read import Reading
from amprewrite.ir import Op, ProgramGraph

aten = torch.ops.aten

UNDECLARED = frozenset(("type_as",))
"""Ops that may return their operand itself without declaring it in their schema."""


def gives_alias(op: Op, node: Node, graph: ProgramGraph) -> bool:
    """Return whether an op that copied in the model may return a view now.

    Args:
        op: The op.
        node: Its node in the rewritten graph.
        graph: The traced program.
    """
    if len(op.results) != 1 or not op.operands or not _may_alias(node):
        return False
    name, result = op.operands[0], op.results[0]
    if graph.storage(name) == graph.storage(result):
        return False
    source = node.args[0]
    if not isinstance(source, Node):
        return False
    if op.canonical == "cast":
        return source.meta["val"].dtype == node.meta["val"].dtype
    traced = graph.values[name].dtype
    return is_inserted(source) or str(source.meta["val"].dtype) != f"torch.{traced}"


def is_inserted(node: Node) -> bool:
    """Return whether the writer inserted ``node``."""
    return "amprewrite" in node.meta


def is_copied_at_once(node: Node) -> bool:
    """Return whether all users of ``node`` are copies that directly follow it."""
    following, directly = node.next, set[Node]()
    while is_inserted(following):
        directly.add(following)
        following = following.next
    return bool(node.users) and directly.issuperset(node.users)


def _may_alias(node: Node) -> bool:
    """Return whether an op declares a view as result, or is known to return one."""
    if not operators.is_overload(node.target):
        return False
    declared = operators.results_alias(node.target)
    return declared or packet_name(node.target) in UNDECLARED


def keep_copy(reading: Reading, op: Op, node: Node) -> None:
    """Insert a copy of ``op``'s result if it may share a storage that is written to."""
    graph = reading.graph
    if not graph.written or not gives_alias(op, node, graph):
        return
    storages = {graph.storage(op.operands[0]), op.results[0]}
    if not storages & graph.written:
        return
    readers = list(node.users)
    with node.graph.inserting_before(node.next):
        copy = node.graph.call_function(aten.clone.default, (node,))
    copy.meta = {**node.meta, "amprewrite": "copy kept"}
    reading.leaves[copy] = op.results[0]
    for reader in readers:
        reader.replace_input_with(node, copy)
