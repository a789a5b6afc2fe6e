"""Run convolutions of CPUs in the layout with the channels last.

Kernels of x86 CPUs convolve 16-bit tensors faster in that layout, copies of the operand
and of the result counted. Ops that compute the same in each layout, element by element,
stay in it between two convolutions. In float32 the copies take longer than one
convolution gains: there it is a network of them that pays, or not.
"""

from collections.abc import Callable, Collection, Mapping
from functools import reduce
from typing import Any

import torch
from torch.fx import Graph, Node

from amprewrite.frameworks.torch_fx.compat import operators, tensor_internals
from amprewrite.frameworks.torch_fx.lowering.simplify.constants import written_values
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

_GROUPS = 6
"""Position of the number of groups among the arguments of a convolution."""

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

Not so gelu, silu and others whose kernels round otherwise in the last few elements of a
row, which are other ones in another layout.
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

_TRAINS = 5
"""Position of the flag of a batch norm that its statistics are those of the batch."""

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

    Values that other ops or the caller read keep their layout. Wanted is a graph not
    trained: backward passes were not timed.

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
    operands = [n for n in node.all_input_nodes if _rank(n) == _RANK]
    shapes = {str(_value(n).shape) for n in operands}  # of symbols, too
    is_one = len(shapes) == 1 or node.target is aten.cat.default
    if not is_one or _rank(node) != _RANK or not plain.keys() >= {*operands}:
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
    if groups(node) != 1:
        return False
    low = may_change(node, torch.bfloat16) or may_change(node, torch.float16)
    return low and products(node) >= LEAST_PRODUCTS


def may_change(node: Node, dtype: torch.dtype) -> bool:
    """Return whether a node is a convolution of a dtype, and plain, on such a CPU."""
    if node.target not in CONVOLUTIONS:
        return False
    given, weight, found = values = [_value(n) for n in (*node.args[:2], node)]
    if not all(isinstance(value, torch.Tensor) for value in values):
        return False
    is_plain = given.is_contiguous() and found.is_contiguous()
    if not is_plain or given.device.type != "cpu" or given.dim() != _RANK:
        return False
    return given.dtype == weight.dtype == dtype and _is_measured()


def groups(node: Node) -> Any:
    """Return the number of groups of a convolution."""
    return node.kwargs.get("groups", (*node.args, *[1] * 7)[_GROUPS])


def products(node: Node) -> int:
    """Return the number of products of a convolution, in the tracer's example."""
    weight, found = _value(node.args[1]), _value(node)
    count = weight.numel()
    for extent in (found.shape[0], *found.shape[2:]):
        count *= tensor_internals.example_of(extent)
    return count


def _keeps_layout(node: Node, fuses: Callable[[torch.dtype], bool] | None) -> bool:
    """Return whether an op gives the same bits in each layout, and keeps it."""
    if node.target is aten.batch_norm.default:
        return node.args[_TRAINS] is False
    if node.target in _NEARLY_FREE and fuses is not None:
        value = _value(node)
        return isinstance(value, torch.Tensor) and fuses(value.dtype)
    return node.target in _FREE


def _is_measured() -> bool:
    """Return whether this is a CPU of the kind that was measured."""
    return torch.backends.cpu.get_cpu_capability().startswith("AVX")


def _value(node: Any) -> Any:
    return node.meta.get("val") if isinstance(node, Node) else None


def _rank(node: Node) -> int:
    value = _value(node)
    return value.dim() if isinstance(value, torch.Tensor) else 0


def _in_layout(graph: Graph, node: Any, layout: torch.memory_format) -> Node:
    target: Any = _last if layout is torch.channels_last else aten.contiguous.default
    made = graph.call_function(target, (node,), {"memory_format": layout})
    made.meta |= {"val": _value(node), COPY: True}
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
            dtypes = {_value(n).dtype for n in (written, *others)}
            kept = reduce(torch.promote_types, dtypes) == _value(node).dtype
            if alone and kept and _is_new(written):
                node.target = _OUT_OF_PLACE[node.target]


def _is_new(node: Node) -> bool:
    """Return whether a value has memory of its own."""
    if node.target is aten.to.dtype:
        return _value(node).dtype != _value(node.args[0]).dtype
    return node.target in CONVOLUTIONS or _keeps_layout(node, None)
