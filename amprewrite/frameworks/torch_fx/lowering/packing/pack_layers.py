"""Let layers read packed weights, where every reader of a weight can."""

from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, Node

from amprewrite.frameworks.torch_fx.compat import tensor_internals
from amprewrite.frameworks.torch_fx.lowering.packing import kernels
from amprewrite.frameworks.torch_fx.lowering.packing.find_convolutions import (
    convolutions,
)
from amprewrite.frameworks.torch_fx.lowering.packing.find_linears import linears
from amprewrite.frameworks.torch_fx.lowering.packing.layer import Layer
from amprewrite.frameworks.torch_fx.lowering.packing.layouts import Layout, OfMatrix
from amprewrite.frameworks.torch_fx.lowering.packing.packed_layer import PackedLayer
from amprewrite.frameworks.torch_fx.lowering.packing.trial import tried
from amprewrite.frameworks.torch_fx.lowering.simplify.constants import FOLDED
from amprewrite.plan.fields import Lowering

NAME = "packed"
IN_BLOCKS = "with weights in the layout of the kernel"
NOT = "not packed: {}"

LEAST_ELEMENTS = 2**16
"""Elements of a matrix for which packing pays.

Of 768 by 3,072 in bfloat16 with 16 rows the plain kernel took 532 us, the packed one
394 (measured on a CPU with bfloat16 instructions): 58 ns for 1,000 elements. The call
takes up to 4 us longer than that of the plain kernel.
"""


def pack_layers(
    graph: Graph, owner: nn.Module, copies: Collection[str] | None = None
) -> tuple[Lowering, ...]:
    """Replace linear layers and convolutions by ones that read packed weights.

    A weight is packed by the first call. Wanted is a graph for calls without gradients.

    Args:
        graph: The graph, with values in the meta of its nodes; it is changed in place.
        owner: The module with the attributes of the graph.
        copies: Names of inputs that are copies of weights, which the caller of the
            graph alone has: these are packed; None to pack attributes.

    Returns:
        A record of the layers, and one for each reason why others stay as they are.
    """
    found: dict[str, list[str]] = {}
    padding: dict[str, int] = {}
    for layer in _packable(graph, owner, copies):
        value, shape = layer.weight.meta["val"], layer.operand.meta["val"].shape
        example = tuple(map(tensor_internals.example_of, shape))
        packed = PackedLayer(layer.run, layer.layout, example)
        why, more = tried(packed, value.shape, value.dtype)
        what = NOT.format(why) if why else IN_BLOCKS
        found.setdefault(what, []).append(layer.node.name)
        if not why:
            padding[str(layer.weight.target)] = more
            _replace(layer, packed)
    for node in reversed(graph.nodes):
        if node.op == "call_function" and not node.users and "packed_view" in node.meta:
            graph.erase_node(node)
    kept = {IN_BLOCKS: sum(padding.values())}
    return tuple(
        Lowering(NAME, tuple(ops), what, kept.get(what, 0))
        for what, ops in found.items()
    )


def _replace(layer: Layer, packed: PackedLayer) -> None:
    """Make the node of a layer one that reads the weight itself."""
    node = layer.node
    node.target = packed
    node.args = (layer.operand, layer.weight, layer.bias)
    node.kwargs = {}
    for view in layer.views:
        view.meta["packed_view"] = True


def _packable(
    graph: Graph, owner: nn.Module, copies: Collection[str] | None
) -> Iterator[Layer]:
    """Yield the layers with weights that only such layers read, all in one layout."""
    if copies is None:
        held = {n: _tensor(n, owner) for n in graph.find_nodes(op="get_attr")}
    else:
        inputs = graph.find_nodes(op="placeholder")
        held = {n: n.meta.get("val") for n in inputs if n.name in copies}
    layers = (*linears(graph), *convolutions(graph))
    able = [one for one in layers if one.weight in held and _able(one)]
    reads = Counter(id(held[layer.weight]) for layer in able)
    all_reads: Counter[int] = Counter()
    for node, tensor in held.items():
        all_reads[id(tensor)] += sum(_reads(node))
    layouts: dict[int, set[Layout]] = {}
    for layer in able:
        layouts.setdefault(id(held[layer.weight]), set()).add(layer.layout)
    for layer in able:
        key = id(held[layer.weight])
        alone = reads[key] == all_reads[key] and len(layouts[key]) == 1
        if alone and _is_plain(held[layer.weight], layer.layout.rank):
            yield layer


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


def _able(layer: Layer) -> bool:
    """Return whether a kernel of this CPU takes the operands of a layer."""
    nodes = [layer.node, layer.operand, layer.weight]
    nodes += [] if layer.bias is None else [layer.bias]
    values: list[Any] = [node.meta.get("val") for node in nodes]
    if not all(isinstance(value, torch.Tensor) for value in values):
        return False
    weight = values[2]
    same = all(v.dtype == weight.dtype and v.device.type == "cpu" for v in values)
    strided = all(v.layout == torch.strided for v in values)
    if not same or not strided or not values[1].dim():
        return False
    if isinstance(layer.layout, OfMatrix):
        return weight.numel() >= LEAST_ELEMENTS and kernels.packs(weight.dtype)
    return kernels.convolves(weight.dtype)


def _tensor(node: Node, owner: nn.Module) -> object:
    if FOLDED in node.meta:
        return node
    path, _, name = str(node.target).rpartition(".")
    return getattr(owner.get_submodule(path), name)


def _is_plain(tensor: object, rank: int) -> bool:
    """Return whether an attribute is a tensor in memory, which can be packed."""
    if not isinstance(tensor, torch.Tensor):
        return False
    return tensor.ndim == rank and tensor.device.type == "cpu"
