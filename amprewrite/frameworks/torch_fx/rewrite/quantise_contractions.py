"""Round operands and gradients of contractions to 8 bits, as a plan says."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Node, map_arg

from amprewrite.frameworks.torch_fx.aten.ops import argument, has_argument
from amprewrite.frameworks.torch_fx.rewrite import fp8_operators
from amprewrite.frameworks.torch_fx.rewrite.read import Reading, held, occurrences
from amprewrite.ir import Op
from amprewrite.ir.graph import addend_index, factor_indices
from amprewrite.ops import Group
from amprewrite.plan import Decision, Plan

DETACH = torch.ops.aten.detach.default

QUANTISED = "quantised"
"""Mark of the nodes inserted here, in their ``meta["amprewrite"]``."""


def quantise_contractions(reading: Reading, plan: Plan) -> None:
    """Insert the roundings of a rewritten program, in place.

    A value that several contractions read is rounded once, unless a write in place may
    change it between them.
    """
    made: dict[tuple[Node, str, str], Node] = {}
    for op in reading.graph.ops:
        decision = plan.by_op[op.name]
        if not decision.quantises:
            continue
        node = reading.sites[op.name].node
        if _has_kernel(decision, node):
            call_kernel(node, decision)
            continue
        if decision.forward:
            _quantise_operands(reading, op, decision, node, made)
        if decision.backward:
            _quantise_gradient(reading, op, decision, node)


def _has_kernel(decision: Decision, node: Node) -> bool:
    """Return whether the product runs by the kernel of torch for 8 bits."""
    if decision.kernel == "auto":
        device = node.meta["val"].device
        return device.type == "cuda" and fp8_operators.has_products(device)
    return decision.kernel == "scaled_mm"


def _quantise_operands(
    reading: Reading,
    op: Op,
    decision: Decision,
    node: Node,
    made: dict[tuple[Node, str, str], Node],
) -> None:
    indices = frozenset(factor_indices(op))
    graph = reading.graph
    places = _places(reading, node)

    def replace(arg: Node) -> Node:
        index = next(places)
        if index not in indices:
            return arg
        key = (arg, decision.forward, decision.scaling)
        if key in made:
            return made[key]
        with node.graph.inserting_before(node):
            found = _insert(arg, (decision.forward, "", decision.scaling), node)
        if graph.storage(op.operands[index]) not in graph.written:
            made[key] = found
        return found

    node.args, node.kwargs = map_arg((node.args, dict(node.kwargs)), replace)


def _places(reading: Reading, node: Node) -> Iterator[int]:
    """Yield for each node among the arguments the index of its operand; else -1."""
    index = 0
    for arg in occurrences(node):
        is_tensor = isinstance(arg.meta.get("val"), torch.Tensor)
        count = 1 if is_tensor else len([*held(reading.leaves.get(arg))])
        yield index if count == 1 else -1
        index += count


def _quantise_gradient(
    reading: Reading, op: Op, decision: Decision, node: Node
) -> None:
    """Insert the rounding of the gradient that arrives at a contraction.

    The gradient of its addend is that of before the rounding.
    """
    readers, addend = list(node.users), _take_addend(reading, op, node)
    with node.graph.inserting_before(node.next):
        found = _insert(node, ("", decision.backward, decision.scaling), node)
    if addend is not None:
        found.args = (*found.args, addend, *_place(reading, op, node))
    for reader in readers:
        reader.replace_input_with(node, found)


def _take_addend(reading: Reading, op: Op, node: Node) -> Node | None:
    """Return the addend of a contraction, which reads it without derivative now.

    An addend that is written to in place is left as it is.
    """
    index, places = addend_index(op), _places(reading, node)
    if index is None or op.mutates:
        return None
    addends: list[Node] = []

    def replace(arg: Node) -> Node:
        if next(places) != index:
            return arg
        addends.append(arg)
        with node.graph.inserting_before(node):
            return _marked(node.graph.call_function(DETACH, (arg,)), arg, node)

    node.args, node.kwargs = map_arg((node.args, dict(node.kwargs)), replace)
    return addends[0] if addends else None


def _place(reading: Reading, op: Op, node: Node) -> tuple[int, Any]:
    """Return the number of dimensions after the addend's last, and its factor.

    The factor is a number, or the node of one.
    """
    if op.traits.group == Group.CONVOLUTION:
        weight = reading.graph.values[op.operands[1]]
        return len(weight.shape) - 2, 1
    return 0, argument(node, "beta") if has_argument(node, "beta") else 1


def _insert(value: Node, how: tuple[str, str, str], user: Node) -> Node:
    """Insert a rounding of ``value`` where nodes are inserted now; return it."""
    node = value.graph.call_function(fp8_operators.QUANTISE, (value, *how))
    return _marked(node, value, user)


def _marked(node: Node, value: Node, user: Node) -> Node:
    """Return an inserted node with the metadata of a copy of ``value``."""
    copied = ("nn_module_stack", "stack_trace")
    node.meta = {k: v for k, v in user.meta.items() if k in copied}
    node.meta["val"] = torch.empty_like(value.meta["val"])
    node.meta["amprewrite"] = QUANTISED
    return node


aten = torch.ops.aten


def call_kernel(node: Node, decision: Decision) -> None:
    """Make ``node``, a matrix product, a call of the operator, in place.

    Raises:
        UnsupportedError: Its device has no products of 8 bits.
    """
    fp8_operators.check_device(node.meta["val"].device)
    given: tuple[Any, ...]
    if node.target is aten.linear.default:
        names = ("input", "weight", "bias")
        given, turned = tuple(argument(node, name) for name in names), False
    else:
        given, turned = (*node.args, None), True
    how = decision.forward, decision.backward, decision.scaling
    node.target = fp8_operators.FP8_DOT
    node.args, node.kwargs = (*given, *how, turned), {}
