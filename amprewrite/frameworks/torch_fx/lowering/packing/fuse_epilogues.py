"""Do the activation, or the sum, after a layer with a packed weight in its kernel.

The kernel applies it to the accumulator, in float32, and rounds once: two roundings
less than a low layer, a cast to float32, an activation and a cast back.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Graph, Node

from amprewrite.frameworks.torch_fx.compat import operators
from amprewrite.frameworks.torch_fx.lowering.packing.kernels import SUM, Epilogue
from amprewrite.frameworks.torch_fx.lowering.packing.layouts import OfWindow
from amprewrite.frameworks.torch_fx.lowering.packing.packed_layer import PackedLayer
from amprewrite.frameworks.torch_fx.lowering.packing.trial import tried
from amprewrite.plan.fields import Lowering

aten = torch.ops.aten

NAME = "fused"
ONCE = "in one kernel, rounded once"
NOT = "not fused: {}"


def _gelu(node: Node) -> Epilogue:
    return Epilogue("gelu", (), str(node.kwargs.get("approximate", "none")))


def _leaky_relu(node: Node) -> Epilogue:
    slope: Any = (*node.args, 0.01)[1]
    return Epilogue("leaky_relu", (slope,))


def _hardtanh(node: Node) -> Epilogue:
    bounds: Any = (*node.args[1:], *(-1.0, 1.0)[len(node.args) - 1 :])
    return Epilogue("hardtanh", bounds)


_ACTIVATIONS: Mapping[Any, Callable[[Node], Epilogue]] = {
    aten.relu.default: lambda _: Epilogue("relu"),
    aten.sigmoid.default: lambda _: Epilogue("sigmoid"),
    aten.tanh.default: lambda _: Epilogue("tanh"),
    aten.silu.default: lambda _: Epilogue("swish"),
    aten.hardswish.default: lambda _: Epilogue("hardswish"),
    aten.hardsigmoid.default: lambda _: Epilogue("hardsigmoid"),
    aten.gelu.default: _gelu,
    aten.leaky_relu.default: _leaky_relu,
    aten.hardtanh.default: _hardtanh,
}
"""Activations of the kernels (torch/_inductor/fx_passes/mkldnn_fusion.py has them)."""

_AFTER_SUMS = frozenset((aten.relu.default,))
"""Activations that the kernels of convolutions do after a sum (the same file)."""


def fuse_epilogues(graph: Graph, written: set[Node]) -> tuple[Lowering, ...]:
    """Move the op after a packed layer into its kernel, if it is the only reader.

    Args:
        graph: The graph, with values in the meta of its nodes; it is changed in place.
        written: Nodes with values that the graph writes to, or may write to.

    Returns:
        A record for each layer with the ops that its kernel does, or could not do.
    """
    found: list[Lowering] = []
    places = {node: number for number, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        if not isinstance(node.target, PackedLayer):
            continue
        for chain, epilogue, rest in _chains(node, places, written):
            names = (node.name, *(one.name for one in chain))
            after = _following(node, chain)
            layer = replace(node.target, epilogue=epilogue, after=after)
            weight: Any = node.args[1]
            if why := tried(layer, _value(weight).shape, _value(node).dtype).why:
                found.append(Lowering(NAME, names, NOT.format(why)))
                continue
            node.target, node.args = layer, (*node.args, *rest)
            node.meta["val"] = chain[-1].meta["val"]
            chain[-1].replace_all_uses_with(node)
            for one in reversed(chain):
                graph.erase_node(one)
            found.append(Lowering(NAME, names, ONCE))
            break
    return tuple(found)


_Found = tuple[list[Node], Epilogue, tuple[Node, ...]]
"""Ops after a layer, the epilogue in place of them, and its other operands."""


def _chains(
    node: Node, places: Mapping[Node, int], written: set[Node]
) -> Iterator[_Found]:
    """Yield the ops after a layer that its kernel may do, most of them first."""
    active = _activation(node)
    if active is not None:
        found = [active]
    else:
        chain, epilogue, rest = _sum(node, places, written)
        last = _only_reader(chain[0]) if chain else None
        found = [(chain, epilogue, rest)] if chain else []
        is_window = isinstance(_layer(node).layout, OfWindow)
        if last is not None and is_window and last.target in _AFTER_SUMS:
            both = _ACTIVATIONS[last.target](last)._replace(sums=True)
            found.insert(0, ([*chain, last], both, rest))
    for one in found:
        if written.isdisjoint((node, *one[0])):
            yield one


def _layer(node: Node) -> PackedLayer:
    layer: Any = node.target
    return layer


def _activation(node: Node) -> _Found | None:
    """Return the activation after a layer, with the casts around it."""
    chain: list[Node] = []
    last = node
    while (following := _only_reader(last)) is not None and len(chain) < 3:  # noqa: PLR2004  # a cast, the activation, a cast
        chain.append(following)
        last = following
    low = _value(node).dtype
    targets = [one.target for one in chain]
    if targets[:1] and targets[0] in _ACTIVATIONS and _value(chain[0]).dtype == low:
        chain = chain[:1]
    elif not (
        [aten.to.dtype, aten.to.dtype] == targets[::2]
        and targets[1] in _ACTIVATIONS
        and _value(chain[0]).dtype == _value(chain[1]).dtype == torch.float32
        and _value(chain[2]).dtype == low
        and all(len(cast.args) == 2 and not cast.kwargs for cast in chain[::2])  # noqa: PLR2004  # the operand, the dtype
    ):
        return None
    active = next(one for one in chain if one.target in _ACTIVATIONS)
    return chain, _ACTIVATIONS[active.target](active), ()


def _sum(node: Node, places: Mapping[Node, int], written: set[Node]) -> _Found:
    """Return the sum of a layer and a value that is there before it, of one shape."""
    none: _Found = [], SUM, ()
    one = _only_reader(node)
    if one is None or one.target is not aten.add.Tensor or one.kwargs:
        return none
    other: Any = one.args[1] if one.args[0] is node else one.args[0]
    if not isinstance(other, Node) or other in written or other is node:
        return none
    values = [_value(n) for n in (node, one, other)]
    if not all(isinstance(value, torch.Tensor) for value in values):
        return none
    alike = {(str(v.shape), v.dtype, v.device.type) for v in values}
    fits = (
        len(alike) == 1 and values[2].is_contiguous() and places[other] < places[node]
    )
    return ([one], SUM, (other,)) if fits else none


def _only_reader(node: Node) -> Node | None:
    """Return the only op that reads a value; None if there are more, or other nodes."""
    if len(node.users) != 1:
        return None
    reader = next(iter(node.users))
    if reader.op != "call_function" or not operators.is_overload(reader.target):
        return None
    return reader if isinstance(_value(reader), torch.Tensor) else None


def _following(node: Node, chain: list[Node]) -> Callable[..., Any]:
    """Return the ops after a layer, as a function of its result and the rest."""
    if chain[0].target is aten.add.Tensor:
        add, first = operators.builtin_of(aten.add.Tensor), chain[0].args[0] is node
        last = _following(node, chain[1:]) if chain[1:] else _itself

        def plus(y: Any, other: Any) -> Any:
            return last(add(y, other) if first else add(other, y))

        return plus
    steps: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []
    for one in chain:
        target: Any = one.target
        steps.append((operators.builtin_of(target), one.args[1:], {**one.kwargs}))

    def after(y: Any) -> Any:
        for run, args, kwargs in steps:
            y = run(y, *args, **kwargs)
        return y

    return after


def _itself(y: Any) -> Any:
    return y


def _value(node: Node) -> Any:
    return node.meta.get("val")
