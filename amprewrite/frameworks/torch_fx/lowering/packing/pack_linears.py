"""Let linear layers read packed weights, where every reader of a weight can."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, Node

from amprewrite.frameworks.torch_fx.lowering.constants import FOLDED
from amprewrite.frameworks.torch_fx.lowering.packing import kernels
from amprewrite.frameworks.torch_fx.lowering.packing.find_linears import (
    Linear,
    linears,
    rows_of,
)
from amprewrite.frameworks.torch_fx.lowering.packing.packed_linear import PackedLinear
from amprewrite.frameworks.torch_fx.lowering.packing.trial import tried
from amprewrite.plan.fields import Lowering

NAME = "packed"
IN_BLOCKS = "with weights in the layout of the kernel"
NOT = "not packed: {}"

LEAST_ELEMENTS = 2**16
"""Elements of a weight for which packing pays.

Of 768 by 3,072 in bfloat16 with 16 rows the plain kernel took 532 us, the packed one
394 (measured on a CPU with bfloat16 instructions): 58 ns for 1,000 elements. The call
takes up to 4 us longer than that of the plain kernel.
"""


def pack_linears(graph: Graph, owner: nn.Module) -> tuple[Lowering, ...]:
    """Replace linear layers by ones that read packed weights.

    A weight is packed by the first call. Wanted is a graph for calls without gradients.

    Args:
        graph: The graph, with values in the meta of its nodes; it is changed in place.
        owner: The module with the attributes of the graph.

    Returns:
        A record of the layers, and one for each reason why others stay as they are.
    """
    found: dict[str, list[str]] = {}
    padding: dict[str, int] = {}
    for linear in _packable(graph, owner):
        value = linear.weight.meta["val"]
        shape = value.shape[::-1] if linear.transposed else value.shape
        layer = PackedLinear(linear.run, rows_of(linear.operand), linear.transposed)
        why, more = tried(layer, torch.Size(shape), value.dtype)
        what = NOT.format(why) if why else IN_BLOCKS
        found.setdefault(what, []).append(linear.node.name)
        if not why:
            padding[str(linear.weight.target)] = more
            _replace(linear, layer)
    for node in reversed(graph.nodes):
        if node.op == "call_function" and not node.users and "packed_view" in node.meta:
            graph.erase_node(node)
    kept = {IN_BLOCKS: sum(padding.values())}
    return tuple(
        Lowering(NAME, tuple(ops), what, kept.get(what, 0))
        for what, ops in found.items()
    )


def _replace(linear: Linear, layer: PackedLinear) -> None:
    """Make the node of a layer one that reads the weight itself."""
    node = linear.node
    node.target = layer
    node.args = (linear.operand, linear.weight, linear.bias)
    node.kwargs = {}
    for view in linear.views:
        view.meta["packed_view"] = True


def _packable(graph: Graph, owner: nn.Module) -> Iterator[Linear]:
    """Yield the layers with weights that only such layers read, all in one layout."""
    held = {n: _tensor(n, owner) for n in graph.nodes if n.op == "get_attr"}
    able = [linear for linear in linears(graph) if _is_able(linear)]
    reads = Counter(id(held[linear.weight]) for linear in able)
    all_reads: Counter[int] = Counter()
    for node, tensor in held.items():
        all_reads[id(tensor)] += sum(_reads(node))
    layouts: dict[int, set[bool]] = {}
    for linear in able:
        layouts.setdefault(id(held[linear.weight]), set()).add(linear.transposed)
    for linear in able:
        key = id(held[linear.weight])
        alone = reads[key] == all_reads[key] and len(layouts[key]) == 1
        if alone and _is_plain(held[linear.weight]):
            yield linear


def _reads(node: Node) -> Iterator[int]:
    """Yield how often each reader reads a weight, or the transpose of it."""
    for user in node.users:
        below = user.users if _is_view(user) else (user,)
        for reader in below:
            source = user if _is_view(user) else node
            yield [*reader.args, *reader.kwargs.values()].count(source) or 1


def _is_view(node: Node) -> bool:
    aten = torch.ops.aten
    return node.target in (aten.t.default, aten.numpy_T.default, aten.transpose.int)


def _is_able(linear: Linear) -> bool:
    """Return whether a kernel of this CPU takes the operands of a layer."""
    nodes = [linear.node, linear.operand, linear.weight]
    nodes += [] if linear.bias is None else [linear.bias]
    values: list[Any] = [node.meta.get("val") for node in nodes]
    if not all(isinstance(value, torch.Tensor) for value in values):
        return False
    weight = values[2]
    same = all(v.dtype == weight.dtype and v.device.type == "cpu" for v in values)
    strided = all(v.layout == torch.strided for v in values)
    if not same or not strided or weight.numel() < LEAST_ELEMENTS:
        return False
    return values[1].dim() >= 1 and kernels.packs(weight.dtype)


def _tensor(node: Node, owner: nn.Module) -> object:
    if FOLDED in node.meta:
        return node
    path, _, name = str(node.target).rpartition(".")
    return getattr(owner.get_submodule(path), name)


def _is_plain(tensor: object) -> bool:
    """Return whether an attribute is a matrix in memory, which can be packed."""
    if not isinstance(tensor, torch.Tensor):
        return False
    return tensor.ndim == 2 and tensor.device.type == "cpu"  # noqa: PLR2004  # a matrix
