"""Round operands and gradients of contractions to 8 bits, as a plan says."""

from collections.abc import Iterator

import torch
from torch.fx import Node, map_arg

from amprewrite.frameworks.torch_fx.rewrite.fp8_kernel.call import call_kernel
from amprewrite.frameworks.torch_fx.rewrite.fp8_kernel.product import has_products
from amprewrite.frameworks.torch_fx.rewrite.quantise_op import OPERATOR
from amprewrite.frameworks.torch_fx.rewrite.read import Reading, held
from amprewrite.ir import Op
from amprewrite.ir.factors import factor_indices
from amprewrite.plan import Decision, Plan

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
            _quantise_gradient(decision, node)


def _has_kernel(decision: Decision, node: Node) -> bool:
    """Return whether the product runs by the kernel of torch for 8 bits."""
    if decision.kernel == "auto":
        device = node.meta["val"].device
        return device.type == "cuda" and has_products(device)
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
    found: list[int] = []

    def note(arg: Node) -> Node:
        nonlocal index
        val = arg.meta.get("val")
        count = (
            1
            if isinstance(val, torch.Tensor)
            else len([*held(reading.leaves.get(arg))])
        )
        found.append(index if count == 1 else -1)
        index += count
        return arg

    map_arg((node.args, dict(node.kwargs)), note)
    return iter(found)


def _quantise_gradient(decision: Decision, node: Node) -> None:
    """Insert the rounding of the gradient that arrives at a contraction."""
    readers = list(node.users)
    with node.graph.inserting_before(node.next):
        found = _insert(node, ("", decision.backward, decision.scaling), node)
    for reader in readers:
        reader.replace_input_with(node, found)


def _insert(value: Node, how: tuple[str, str, str], user: Node) -> Node:
    """Insert a rounding of ``value`` where nodes are inserted now; return it."""
    node = value.graph.call_function(OPERATOR, (value, *how))
    copied = ("nn_module_stack", "stack_trace")
    node.meta = {k: v for k, v in user.meta.items() if k in copied}
    node.meta["val"] = torch.empty_like(value.meta["val"])
    node.meta["amprewrite"] = QUANTISED
    return node
