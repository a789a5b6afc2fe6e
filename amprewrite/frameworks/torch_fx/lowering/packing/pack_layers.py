"""Let layers read packed weights, where every reader of a weight can."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.fx import Graph, Node

from amprewrite.frameworks.torch_fx.aten.ops import argument
from amprewrite.frameworks.torch_fx.compat import operators, pytrees, tensor_internals
from amprewrite.frameworks.torch_fx.lowering.channels_last import CONVOLUTIONS, LAST
from amprewrite.frameworks.torch_fx.lowering.packing import kernels
from amprewrite.frameworks.torch_fx.lowering.packing.packed_layer import (
    PackedLayer,
    tried,
)
from amprewrite.frameworks.torch_fx.lowering.simplify import FOLDED, rank_of
from amprewrite.plan.fields import Lowering

aten = torch.ops.aten

OF_WEIGHTS = ("get_attr", "placeholder")
"""Kinds of nodes that may be weights; those of graphs of dynamo are inputs."""


class Layer(NamedTuple):
    """A layer of a graph.

    Attributes:
        node: Its node.
        operand: Its operand.
        weight: The node of its weight.
        bias: The node of its bias; None if it has none.
        layout: The layout of its weight in blocks.
        views: Nodes between the weight and the layer, which transpose it.
        run: The layer of an operand, the weight and the bias.
    """

    node: Node
    operand: Node
    weight: Node
    bias: Node | None
    layout: kernels.Layout
    views: tuple[Node, ...]
    run: Callable[[Any, Any, Any], Any]


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

    A weight is packed by the first call. The graph must be one that runs under
    ``no_grad``.

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
    layouts: dict[int, set[kernels.Layout]] = {}
    for layer in able:
        layouts.setdefault(id(held[layer.weight]), set()).add(layer.layout)
    for layer in able:
        key = id(held[layer.weight])
        tensor: Any = held[layer.weight]
        alone = reads[key] == all_reads[key] and len(layouts[key]) == 1
        on_cpu = isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu"
        if alone and on_cpu and tensor.ndim == layer.layout.rank:
            yield layer


def _reads(node: Node) -> Iterator[int]:
    """Yield how often each reader reads a weight, or the transpose of it."""
    for user in node.users:
        below = user.users if _is_view(user) else (user,)
        for reader in below:
            source = user if _is_view(user) else node
            yield [*reader.args, *reader.kwargs.values()].count(source) or 1


def _is_view(node: Node) -> bool:
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
    if isinstance(layer.layout, kernels.OfMatrix):
        return weight.numel() >= LEAST_ELEMENTS and kernels.packs(weight.dtype)
    return kernels.convolves(weight.dtype)


def _tensor(node: Node, owner: nn.Module) -> object:
    if FOLDED in node.meta:
        return node
    path, _, name = str(node.target).rpartition(".")
    return getattr(owner.get_submodule(path), name)


# Find linear layers in a graph: linear, addmm, mm and matmul with a weight.

_RANK = 2
"""Number of dimensions of a weight."""


def linears(graph: Graph) -> Iterator[Layer]:
    """Yield the linear layers of a graph with an attribute or an input as weight.

    Args:
        graph: The graph, with values in the meta of its nodes.
    """
    for node in graph.nodes:
        parts = _parts(node)
        if parts is None:
            continue
        operand, matrix, bias, by_rows = parts
        weight, views = _attribute(matrix)
        values = [weight, operand, *([] if bias is None else [bias])]
        if weight is None or not all(isinstance(n, Node) for n in values):
            continue
        turned = bool(views)
        run = _plain_linear(node.target, turned=turned)
        layout = kernels.OfMatrix(transposed=by_rows is turned)
        yield Layer(node, operand, weight, bias, layout, views, run)


def _parts(node: Node) -> tuple[Any, Any, Any, bool] | None:
    """Return operand, matrix and bias, and whether it is of outputs by inputs."""
    args: Any = node.args
    if node.target is aten.linear.default:
        bias = node.kwargs.get("bias", args[2] if args[2:] else None)
        return None if node.kwargs.keys() - {"bias"} else (*args[:2], bias, True)
    if node.kwargs:  # factors of the product and the sum
        return None
    if node.target is aten.addmm.default:
        return (args[1], args[2], args[0], False) if rank_of(args[0]) == 1 else None
    if node.target in (aten.mm.default, aten.matmul.default):
        return (*args, None, False) if rank_of(args[1]) == _RANK else None
    return None


def _attribute(matrix: Any) -> tuple[Node | None, tuple[Node, ...]]:
    """Return the weight that a matrix is, or the transpose of, with that node."""
    if not isinstance(matrix, Node):
        return None, ()
    if matrix.op in OF_WEIGHTS:
        return matrix, ()
    is_turn = matrix.target in (aten.t.default, aten.numpy_T.default) or (
        matrix.target is aten.transpose.int
        and {int(d) % _RANK for d in matrix.args[1:] if isinstance(d, int)} == {0, 1}
    )
    source = matrix.args[0] if is_turn and not matrix.kwargs else None
    if not isinstance(source, Node) or source.op not in OF_WEIGHTS:
        return None, ()
    return (source, (matrix,)) if rank_of(source) == _RANK else (None, ())


def _plain_linear(op: Any, *, turned: bool) -> Callable[[Any, Any, Any], Any]:
    """Return a layer of an operand, a weight (transposed if ``turned``) and a bias."""
    run, is_linear = operators.builtin_of(op), op is aten.linear.default

    def layer(x: Any, weight: Any, bias: Any) -> Any:
        matrix = weight.t() if turned else weight
        if op is aten.addmm.default:
            return run(bias, x, matrix)
        return run(x, matrix, bias) if is_linear else run(x, matrix)

    return run if is_linear and not turned else layer


# Find convolutions of images in a graph that read them with the channels last.

_NAMES = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
"""Arguments of a convolution."""

_SPATIAL = 2
"""Number of dimensions of an image beside batch and channels."""


def convolutions(graph: Graph) -> Iterator[Layer]:
    """Yield the convolutions with an attribute or an input as weight.

    The kernels of packed weights give results with the channels last, so that those in
    another layout are left out.

    Args:
        graph: The graph, with values in the meta of its nodes.
    """
    for node in graph.nodes:
        if node.target not in CONVOLUTIONS or LAST not in node.meta:
            continue
        arguments: list[Any] = [argument(node, name) for name in _NAMES]
        operand, weight, bias, *place = arguments
        window = _window(weight, *place)
        values = [operand, weight, *([] if bias is None else [bias])]
        if window is None or not all(isinstance(n, Node) for n in values):
            continue
        if weight.op in OF_WEIGHTS:
            run = _plain_convolution(node.target, place)
            yield Layer(node, operand, weight, bias, kernels.OfWindow(window), (), run)


def _window(
    weight: Any, stride: Any, padding: Any, dilation: Any, groups: Any
) -> kernels.Window | None:
    """Return the window of a convolution; None if its zeros are not symmetric."""
    value = weight.meta.get("val") if isinstance(weight, Node) else None
    if not isinstance(value, torch.Tensor):
        return None
    steps, distances = _numbers(stride), _numbers(dilation)
    if padding == "valid":
        zeros = (0,) * _SPATIAL
    elif padding == "same":
        spans = zip(distances, value.shape[2:], strict=True)
        around = [far * (size - 1) for far, size in spans]
        if any(count % 2 for count in around):
            return None
        zeros = tuple(count // 2 for count in around)
    else:
        zeros = _numbers(padding)
    numbers = (*steps, *zeros, *distances, groups)
    is_known = all(type(number) is int for number in numbers)
    return kernels.Window(steps, zeros, distances, groups) if is_known else None


def _numbers(given: Any) -> tuple[Any, ...]:
    """Return a number for each dimension of an image."""
    numbers: tuple[Any, ...] = tuple(given) if pytrees.is_sequence(given) else (given,)
    return numbers * _SPATIAL if len(numbers) == 1 else numbers


def _plain_convolution(target: Any, place: list[Any]) -> Callable[[Any, Any, Any], Any]:
    run = operators.builtin_of(target)
    return lambda x, weight, bias: run(x, weight, bias, *place)
