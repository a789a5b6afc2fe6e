"""Run convolutions of CPUs in the layout with the channels last.

Kernels of x86 CPUs convolve 16-bit tensors faster in that layout, copies of the operand
and of the result counted. Ops that compute the same in each layout, element by element,
stay in it between two convolutions. In float32 the copies take longer than one
convolution gains: there it is a network of them that pays, or not.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import reduce
from math import prod
from typing import Any

import torch
from torch.fx import Graph, Node

from amprewrite.frameworks.torch_fx.aten.ops import argument
from amprewrite.frameworks.torch_fx.compat import operators, tensor_internals
from amprewrite.frameworks.torch_fx.lowering.simplify import (
    copied,
    rank_of,
    value_of,
    written_values,
)
from amprewrite.plan.fields import Lowering

aten = torch.ops.aten

IN_LAYOUT = "with the channels last"

LEAST_PRODUCTS = 10**6
"""Products of a convolution for which the layout pays.

Measured in bfloat16 on an AVX2 CPU, one thread, times without over with both copies:
stem of 5e6 products 3.0, 3x3 of 3e7 4.4, 1x1 of 6e6 1.4 (float16: 3.4, 3.8, 1.0), 3x3
of 4e4 0.9. Grouped convolutions lose where each channel is a group (0.2), and one
in float32 gains nothing. With bfloat16 instructions ResNet-50 took 0.75 of the time.
"""

LAST = "channels last"
"""Key in the meta of an op that reads images and gives them with the channels last."""

COPY = "copy into a layout"
"""Key in the meta of a node that copies a value into a layout."""

CONVOLUTIONS = frozenset((aten.conv2d.default, aten.conv2d.padding))
"""Convolutions of images."""

_RANK = 4
"""Number of dimensions of images: batch, channels, height, width."""

_FREE = frozenset(
    (
        aten.relu.default,
        aten.hardtanh.default,
        aten.leaky_relu.default,
        aten.add.Tensor,
        aten.mul.Tensor,
        aten.to.dtype,
        aten.max_pool2d.default,
    )
)
"""Ops that give the same bits in each layout, and keep the layout of their operands.

gelu, silu and others are left out: their kernels round the tail of each row
differently, and the layout changes which elements are in the tail.
"""

_NEARLY_FREE = frozenset(
    (
        aten.adaptive_avg_pool2d.default,
        aten.avg_pool2d.default,
        aten.cat.default,
        aten.group_norm.default,
        aten.upsample_nearest2d.vec,
        aten.gelu.default,
        aten.silu.default,
        aten.sigmoid.default,
        aten.tanh.default,
        aten.hardswish.default,
        aten.hardsigmoid.default,
    )
)
"""Ops that keep the layout, but perhaps not the last bit.

On an AVX2 core none takes longer for it: means and nearest neighbours take a tenth.
"""

_OUT_OF_PLACE: Mapping[Any, Any] = {
    aten.relu_.default: aten.relu.default,
    aten.hardtanh_.default: aten.hardtanh.default,
    aten.add_.Tensor: aten.add.Tensor,
}


def put_channels_last(
    graph: Graph,
    full: Collection[str] = (),
    fuses: Callable[[torch.dtype], bool] | None = None,
) -> tuple[Lowering, ...]:
    """Change the layout of convolutions, and of ops between, where it is faster.

    Values that other ops or the caller read keep their layout. The graph must be one
    that is not trained, because backward passes were not timed.

    Args:
        graph: The graph, with values in the meta of its nodes; it is changed in place.
        full: Names of convolutions in float32 that are changed, too.
        fuses: Returns whether kernels of convolutions do other ops of a dtype, which
            round otherwise for that: so may those that they leave, which change their
            layout, too.

    Returns:
        A record of the convolutions, and one of the other ops.
    """
    convolutions = [n for n in graph.nodes if n.name in full or _pays(n)]
    if not convolutions:
        return ()
    _write_nowhere(graph)
    written = written_values(graph)
    plain: dict[Node, Node] = {}
    for node in convolutions:
        with graph.inserting_before(node):
            last = _in_layout(graph, node.args[0], torch.channels_last)
        node.update_arg(0, last)
        plain[_with_plain_result(graph, node)] = node
    plain = {copy: node for copy, node in plain.items() if node not in written}
    able = [n for n in graph.nodes if _keeps_layout(n, fuses) and n not in written]
    others = [node for node in able if _spread(graph, node, plain)]
    _join(graph, plain)
    for node in (*convolutions, *others):
        node.meta[LAST] = True
    found = [tuple(node.name for node in nodes) for nodes in (convolutions, others)]
    return tuple(Lowering("channels_last", ops, IN_LAYOUT) for ops in found if ops)


def _spread(graph: Graph, node: Node, plain: dict[Node, Node]) -> bool:
    """Let an op read its operands with the channels last, if all of them are there.

    Args:
        graph: The graph; it is changed in place.
        node: The op.
        plain: Values with the channels last by their copies in the usual layout, which
            nothing writes to; that of the op is added.

    Returns:
        Whether it does.
    """
    operands = [n for n in node.all_input_nodes if rank_of(n) == _RANK]
    shapes = {str(value_of(n).shape) for n in operands}  # of symbols, too
    is_one = len(shapes) == 1 or node.target is aten.cat.default
    if not is_one or rank_of(node) != _RANK or not plain.keys() >= {*operands}:
        return False
    for operand in operands:
        node.replace_input_with(operand, plain[operand])
    plain[_with_plain_result(graph, node)] = node
    return True


def _join(graph: Graph, plain: Mapping[Node, Node]) -> None:
    """Remove copies that undo each other, and copies that nothing reads."""
    for node in list(graph.nodes):
        is_last = node.kwargs.get("memory_format") == torch.channels_last
        if is_last and node.args[0] in plain:
            node.replace_all_uses_with(plain[node.args[0]])
            graph.erase_node(node)
    for node in reversed([*plain]):
        if not node.users:
            graph.erase_node(node)


def _pays(node: Node) -> bool:
    """Return whether a convolution is faster with the channels last."""
    if argument(node, "groups") != 1:
        return False
    low = may_change(node, torch.bfloat16) or may_change(node, torch.float16)
    return low and products(node) >= LEAST_PRODUCTS


def may_change(node: Node, dtype: torch.dtype) -> bool:
    """Return whether a node is a convolution of a dtype, and plain, on such a CPU."""
    if node.target not in CONVOLUTIONS:
        return False
    given, weight, found = values = [value_of(n) for n in (*node.args[:2], node)]
    if not all(isinstance(value, torch.Tensor) for value in values):
        return False
    is_plain = given.is_contiguous() and found.is_contiguous()
    if not is_plain or given.device.type != "cpu" or given.dim() != _RANK:
        return False
    return given.dtype == weight.dtype == dtype and _is_measured()


def products(node: Node) -> int:
    """Return the number of products of a convolution, in the tracer's example."""
    weight, found = value_of(node.args[1]), value_of(node)
    count = weight.numel()
    for extent in (found.shape[0], *found.shape[2:]):
        count *= tensor_internals.example_of(extent)
    return count


def _keeps_layout(node: Node, fuses: Callable[[torch.dtype], bool] | None) -> bool:
    """Return whether an op gives the same bits in each layout, and keeps it."""
    if node.target is aten.batch_norm.default:
        return argument(node, "training") is False
    if node.target in _NEARLY_FREE and fuses is not None:
        value = value_of(node)
        return isinstance(value, torch.Tensor) and fuses(value.dtype)
    return node.target in _FREE


def _is_measured() -> bool:
    """Return whether this is a CPU of the kind that was measured."""
    return torch.backends.cpu.get_cpu_capability().startswith("AVX")


def _in_layout(graph: Graph, node: Any, layout: torch.memory_format) -> Node:
    target: Any = _last if layout is torch.channels_last else aten.contiguous.default
    made = graph.call_function(target, (node,), {"memory_format": layout})
    made.meta |= {"val": value_of(node), COPY: True}
    return made


def _last(x: Any, *, memory_format: torch.memory_format) -> Any:
    """Return an image with the channels last.

    In a transform of ``torch.func`` it is returned as it is: under ``vmap`` torch does
    not know that layout, and the ops compute the same in each.
    """
    if operators.in_transform():
        return x
    return x.contiguous(memory_format=memory_format)


def _with_plain_result(graph: Graph, node: Node) -> Node:
    """Return the result of a node in the usual layout, which all others read."""
    with graph.inserting_after(node):
        made = _in_layout(graph, node, torch.contiguous_format)
    node.replace_all_uses_with(made, delete_user_cb=lambda user: user is not made)
    return made


def _write_nowhere(graph: Graph) -> None:
    """Replace ops that write to a value that nobody else reads by ones that do not."""
    for node in graph.nodes:
        if node.target in _OUT_OF_PLACE:
            written, *others = node.all_input_nodes
            alone = len(written.users) == 1 and written not in others
            dtypes = {value_of(n).dtype for n in (written, *others)}
            kept = reduce(torch.promote_types, dtypes) == value_of(node).dtype
            if alone and kept and _is_new(written):
                node.target = _OUT_OF_PLACE[node.target]


def _is_new(node: Node) -> bool:
    """Return whether a value has memory of its own."""
    if node.target is aten.to.dtype:
        return value_of(node).dtype != value_of(node.args[0]).dtype
    return node.target in CONVOLUTIONS or _keeps_layout(node, None)


# Choose the float32 convolutions that are faster with the channels last.
#
# A network of them gains in each, and pays for copies where other ops read and write
# its values: so each network is priced as a whole. The prices are nanoseconds, measured
# with packed weights on an AVX2 core (``benchmarks.packing``); more threads divide all
# of them alike, but for those of calls.

_BY_PRODUCT = 2.5e-3
"""Gain of a convolution for each product: 10 to 15 % of the time of most of them.

A core did 45 products in a nanosecond.
"""

_BY_PRODUCT_ALONE = 3e-2
"""Gain for each product where each channel is a group, for a window of 3 by 3.

It took 0.65 to 0.75 of the time. Larger windows lose: 5 by 5 took 0.86 to 1.25, 7 by 7
1.2 to 1.45.
"""

_LEAST_INPUTS = 8
"""Channels of the smallest operand of a convolution that gains.

Of colors, stems took 0.65 to 1.3 of the time, and embeddings of patches 0.7 to 1.2.
"""

_MOST_ALONE = 9
"""Elements of the largest window that gains where each channel is a group."""

_BY_ELEMENT: Mapping[Any, float] = {
    aten.max_pool2d.default: 8.0,
    aten.avg_pool2d.default: 3.0,
    aten.upsample_nearest2d.vec: 10.0,
}
"""Gain of other ops for each element that they read.

They take 8.5 to 12 ns, 4 to 15 ns and 16 ns and more, with the channels last 0.5 to
0.8, 0.5 to 0.7 and 2 to 9: those kernels are vectorized.
"""

_CALL = 25_000.0
"""Cost of a convolution beside its products.

One of 16 by 16 by 3 by 3 on 8 by 8 elements takes 56 us, a plain one 32: torch has
other float32 kernels for images that small.
"""

_COPY = 5_000.0
"""Cost of a copy beside its elements."""

_INTO = 1.5
"""Cost of a copy for each element: 0.75 to 1.9 ns."""

_OUT_OF = 2.5
"""Cost of a copy back into the usual layout for each element: 1.6 to 3.3 ns."""


def paying(graph: Graph, fuses: Callable[[torch.dtype], bool]) -> frozenset[str]:
    """Return the names of the float32 convolutions for which the layout pays.

    Args:
        graph: The graph, with values in the meta of its nodes; it stays as it is.
        fuses: As that of :func:`put_channels_last`.
    """
    full = frozenset(node.name for node in graph.nodes if _gains(node))
    if not full:
        return full
    tried = copied(graph)
    put_channels_last(tried, full, fuses)
    chosen: set[str] = set()
    for network in _networks(tried):
        if sum(map(_gain, network)) > 0:
            chosen.update(node.name for node in network)
    return full & chosen


def _networks(graph: Graph) -> Iterator[set[Node]]:
    """Yield the ops that read and give values in the layout, with their copies."""
    import networkx as nx  # noqa: PLC0415  # slow to load

    graphs: Any = nx
    found = graphs.Graph()
    for node in graph.nodes:
        if LAST in node.meta or COPY in node.meta:
            found.add_node(node)
            for other in node.all_input_nodes:
                if LAST in other.meta or (COPY in other.meta and LAST in node.meta):
                    found.add_edge(node, other)
    yield from graphs.connected_components(found)


def _gains(node: Node) -> bool:
    """Return whether a convolution gains by the layout, copies not counted."""
    if not may_change(node, torch.float32):
        return False
    if argument(node, "groups") == 1:
        return True
    weight: Any = node.args[1]
    _, inputs, *window = weight.meta["val"].shape
    return inputs == 1 and prod(window) <= _MOST_ALONE


def _gain(node: Node) -> float:
    """Return the nanoseconds that a node gains by the layout; a copy loses them."""
    if COPY in node.meta:
        to_last = node.kwargs["memory_format"] == torch.channels_last
        return -_COPY - _elements(node) * (_INTO if to_last else _OUT_OF)
    if node.target in CONVOLUTIONS and node.meta["val"].dtype == torch.float32:
        return _by_product(node) * products(node) - _CALL
    if (by_element := _BY_ELEMENT.get(node.target, 0.0)) == 0.0:
        return 0.0
    return by_element * _elements(node.all_input_nodes[0])


def _by_product(node: Node) -> float:
    """Return the nanoseconds that a convolution gains for each product."""
    if argument(node, "groups") != 1:
        return _BY_PRODUCT_ALONE
    weight: Any = node.args[1]
    return _BY_PRODUCT if weight.meta["val"].shape[1] >= _LEAST_INPUTS else 0.0


def _elements(node: Node) -> int:
    return prod(map(tensor_internals.example_of, node.meta["val"].shape))
