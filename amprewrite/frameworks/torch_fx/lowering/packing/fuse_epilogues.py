"""Do the activation, or the sum, after a layer with a packed weight in its kernel.

The kernel applies it to the accumulator, in float32, and rounds once: two roundings
less than a low layer, a cast to float32, an activation and a cast back. Activations
that stop at a bound are done in place on its result, as kernels lose NaN by them.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from itertools import takewhile
from typing import Any

import torch
from torch.fx import Graph, Node

from amprewrite.frameworks.torch_fx.compat import operators, tensor_internals
from amprewrite.frameworks.torch_fx.lowering.packing.kernels import SUM, Epilogue
from amprewrite.frameworks.torch_fx.lowering.packing.packed_layer import (
    PackedLayer,
    tried,
)
from amprewrite.frameworks.torch_fx.lowering.simplify import value_of
from amprewrite.plan.fields import Lowering

aten = torch.ops.aten

NAME = "fused"
ONCE = "in one kernel, rounded once"
IN_PLACE = "in place, on the result of the kernel"
NOT = "not fused: {}"


_ACTIVATIONS: Mapping[Any, Callable[[Any], Epilogue]] = {
    aten.sigmoid.default: lambda _: Epilogue("sigmoid"),
    aten.tanh.default: lambda _: Epilogue("tanh"),
    aten.silu.default: lambda _: Epilogue("swish"),
    aten.hardswish.default: lambda _: Epilogue("hardswish"),
    aten.gelu.default: lambda node: Epilogue(
        "gelu", (), str(node.kwargs.get("approximate", "none"))
    ),
    aten.leaky_relu.default: lambda node: Epilogue(
        "leaky_relu", ((*node.args, 0.01)[1],)
    ),
}
"""Activations of the kernels (torch/_inductor/fx_passes/mkldnn_fusion.py has them)."""

_BOUNDED: Mapping[Any, Any] = {
    aten.relu.default: aten.relu_.default,
    aten.hardtanh.default: aten.hardtanh_.default,
    aten.hardsigmoid.default: aten.hardsigmoid_.default,
}
"""Activations that stop at a bound, with the ops that do them in place.

Kernels do them by minima and maxima of the processor, which are the bound if the other
operand is NaN: a convolution and its relu gave 0 for NaN, a grouped one with a sum gave
3.4e38 for infinity (oneDNN of torch 2.13, AVX2). In place they take up to 5 % of most
convolutions, and a fifth of one of 1 by 1 to four times the channels.
"""


_ELEMENTWISE = frozenset((*_ACTIVATIONS, *_BOUNDED, aten.to.dtype))
"""Ops below which a view may stand as well as above."""


def fuse_epilogues(graph: Graph, written: set[Node]) -> tuple[Lowering, ...]:
    """Move the ops after a packed layer into its kernel, if it is their only reader.

    Args:
        graph: The graph, with values in the meta of its nodes; it is changed in place.
        written: Nodes with values that the graph writes to, or may write to.

    Returns:
        A record for each layer with the ops that its kernel does, or could not do.
    """
    found: list[Lowering] = []
    places = {node: number for number, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        if isinstance(node.target, PackedLayer):
            _sink_view(node)
            found += _in_kernel(graph, node, places, written)
            found += _on_result(graph, node, written)
    return tuple(found)


def _sink_view(node: Node) -> None:
    """Put a view of a layer's result after the activation that reads it.

    ``Conv1D`` of transformers makes a view of each product, which keeps the two apart.
    """
    view = _only_reader(node)
    if view is None or view.target is not aten.view.default:
        return
    chain = [*takewhile(lambda one: one.target in _ELEMENTWISE, _readers(view))]
    if not any(one.target in _ACTIVATIONS or one.target in _BOUNDED for one in chain):
        return
    last = chain[-1]
    chain[0].replace_input_with(view, node)
    last.replace_all_uses_with(view)
    view.replace_input_with(node, last)
    last.append(view)
    view.meta["val"] = last.meta["val"]
    for one in chain:
        one.meta["val"] = tensor_internals.retyped(value_of(node), value_of(one).dtype)


def _in_kernel(
    graph: Graph, node: Node, places: Mapping[Node, int], written: set[Node]
) -> Iterator[Lowering]:
    """Let the kernel of a layer do the activation or the sum that follows."""
    if (active := _activation(node, _ACTIVATIONS)) is not None:
        chain, last = active
        epilogue, rest = _ACTIVATIONS[last.target](last), ()
    else:
        chain, rest = _sum(node, places, written)
        epilogue = SUM
    if not chain or not written.isdisjoint((node, *chain)):
        return
    names = (node.name, *(one.name for one in chain))
    layer = replace(_layer(node), epilogue=epilogue, after=_following(node, chain))
    weight: Any = node.args[1]
    if why := tried(layer, value_of(weight).shape, value_of(node).dtype).why:
        yield Lowering(NAME, names, NOT.format(why))
        return
    node.target, node.args = layer, (*node.args, *rest)
    _replace(graph, node, chain)
    yield Lowering(NAME, names, ONCE)


def _on_result(graph: Graph, node: Node, written: set[Node]) -> Iterator[Lowering]:
    """Do the activation that follows in place, on the result of the kernel."""
    if (active := _activation(node, _BOUNDED)) is None:
        return
    chain, last = active
    if not written.isdisjoint((node, *chain)):
        return
    names = (node.name, *(one.name for one in chain))
    layer, after = _layer(node), _following(node, chain)
    node.target = replace(
        layer,
        after=after if layer.after is None else _both(layer.after, after),
        bound=_bound(node, last),
    )
    _replace(graph, node, chain)
    yield Lowering(NAME, names, IN_PLACE)


def _bound(node: Node, active: Node) -> Callable[[Any], Any]:
    """Return a function for the activation of a layer, in place on its result."""
    on_bits = relu_in_place(value_of(node))
    if active.target is aten.relu.default and on_bits is not None:
        return on_bits
    run, args = operators.builtin_of(_BOUNDED[active.target]), active.args[1:]
    kwargs: dict[str, Any] = {**active.kwargs}

    def bound(y: Any) -> Any:
        return run(y, *args, **kwargs)

    return bound


def _replace(graph: Graph, node: Node, chain: list[Node]) -> None:
    """Let the readers of the last of the ops after a layer read the layer."""
    node.meta["val"] = chain[-1].meta["val"]
    chain[-1].replace_all_uses_with(node)
    for one in reversed(chain):
        graph.erase_node(one)


def _layer(node: Node) -> PackedLayer:
    layer: Any = node.target
    return layer


def _activation(node: Node, known: Collection[Any]) -> tuple[list[Node], Node] | None:
    """Return the activation after a layer with the casts around it, and alone."""
    chain = [*_readers(node)]
    low = value_of(node).dtype
    targets = [one.target for one in chain]
    if targets[:1] and targets[0] in known and value_of(chain[0]).dtype == low:
        chain = chain[:1]
    elif not (
        [aten.to.dtype, aten.to.dtype] == targets[::2]
        and targets[1] in known
        and value_of(chain[0]).dtype == value_of(chain[1]).dtype == torch.float32
        and value_of(chain[2]).dtype == low
        and all(len(cast.args) == 2 and not cast.kwargs for cast in chain[::2])  # noqa: PLR2004  # the operand, the dtype
    ):
        return None
    return chain, next(one for one in chain if one.target in known)


def _sum(
    node: Node, places: Mapping[Node, int], written: set[Node]
) -> tuple[list[Node], tuple[Node, ...]]:
    """Return the sum of a layer and an earlier value of its shape, and that value."""
    none: tuple[list[Node], tuple[Node, ...]] = [], ()
    one = _only_reader(node)
    if one is None or one.target is not aten.add.Tensor or one.kwargs:
        return none
    other: Any = one.args[1] if one.args[0] is node else one.args[0]
    if not isinstance(other, Node) or other in written or other is node:
        return none
    values = [value_of(n) for n in (node, one, other)]
    if not all(isinstance(value, torch.Tensor) for value in values):
        return none
    alike = {(str(v.shape), v.dtype, v.device.type) for v in values}
    earlier = places[other] < places[node]
    fits = len(alike) == 1 and values[2].is_contiguous() and earlier
    return ([one], (other,)) if fits else none


def _readers(node: Node) -> Iterator[Node]:
    """Yield the ops after a node of which each alone reads the one before.

    They are at most three: a cast, the activation, a cast.
    """
    for _ in range(3):
        reader = _only_reader(node)
        if reader is None:
            return
        yield reader
        node = reader


def _only_reader(node: Node) -> Node | None:
    """Return the only op that reads a value; None if there are more, or other nodes."""
    if len(node.users) != 1:
        return None
    reader = next(iter(node.users))
    if reader.op != "call_function" or not operators.is_overload(reader.target):
        return None
    return reader if isinstance(value_of(reader), torch.Tensor) else None


def _following(node: Node, chain: list[Node]) -> Callable[..., Any]:
    """Return the ops after a layer, as a function of its result and the rest."""
    if chain[0].target is aten.add.Tensor:
        add, first = operators.builtin_of(aten.add.Tensor), chain[0].args[0] is node

        def plus(y: Any, other: Any) -> Any:
            return add(y, other) if first else add(other, y)

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


def _both(first: Callable[..., Any], then: Callable[..., Any]) -> Callable[..., Any]:
    def both(y: Any, *rest: Any) -> Any:
        return then(first(y, *rest))

    return both


# Do ``relu`` of 16-bit floats on their bits: torch converts each to float32 and back.
#
# Read as integers, the negative numbers down to minus infinity are the least ones, and
# NaN with a sign lie above them: what is not above minus infinity becomes zero, also
# minus zero, which ``relu`` keeps, and the rest stays. On a core with AMX it took 0.25
# to 0.45 of the time of ``relu_`` (8e5 and 6e6 elements of bfloat16), and ResNet-50
# with eight images 0.93 of its time.

RELU_BITS = "relu_bits"
ON_BITS = "on the bits of 16-bit floats"

MINUS_INFINITY: Mapping[torch.dtype, int] = {torch.bfloat16: -128, torch.float16: -1024}
"""Minus infinity of each dtype, read as a 16-bit integer: 0xFF80 and 0xFC00."""

LEAST_ELEMENTS = 2**16
"""Number of elements from which it takes less time: below, the calls take more."""

_threshold = operators.builtin_of(aten.threshold.default)
_threshold_in_place = operators.builtin_of(aten.threshold_.default)
_viewed = operators.builtin_of(aten.view.dtype)


def relu_in_place(value: Any) -> Callable[[Any], Any] | None:
    """Return a function for ``relu_`` on tensors like ``value``; None for others."""
    least = _minus_infinity(value)
    if least is None:
        return None

    def relu_(x: Any) -> Any:
        _threshold_in_place(_viewed(x, torch.int16), least, 0)
        return x

    return relu_


def relu_out_of_place(value: Any) -> Callable[[Any], Any] | None:
    """Return a function for ``relu`` on tensors like ``value``; None for others."""
    least, dtype = _minus_infinity(value), getattr(value, "dtype", None)
    if least is None:
        return None

    def relu(x: Any) -> Any:
        return _viewed(_threshold(_viewed(x, torch.int16), least, 0), dtype)

    return relu


_RELUS: Mapping[Any, Callable[[Any], Callable[[Any], Any] | None]] = {
    aten.relu.default: relu_out_of_place,
    aten.relu_.default: relu_in_place,
}


def put_relus_on_bits(graph: Graph) -> tuple[Lowering, ...]:
    """Replace ``relu`` of large 16-bit tensors on a CPU; derivatives are lost.

    Args:
        graph: The graph, with values in the meta of its nodes; it is changed in place.

    Returns:
        A record of all of them, if there are any.
    """
    names: list[str] = []
    for node in graph.nodes:
        source = node.args[0] if node.target in _RELUS else None
        if not isinstance(source, Node):
            continue
        run = _RELUS[node.target](source.meta.get("val"))
        if run is not None:
            node.target = run
            names.append(node.name)
    return (Lowering(RELU_BITS, tuple(names), ON_BITS),) if names else ()


def _minus_infinity(value: Any) -> int | None:
    """Return minus infinity as an integer for a large tensor of a CPU; else None."""
    if not isinstance(value, torch.Tensor) or value.device.type != "cpu":
        return None
    if value.is_neg():  # of the imaginary part of a conjugate: no view has its bits
        return None
    size: Any = value.numel()
    large = type(size) is int and size >= LEAST_ELEMENTS  # no symbol
    return MINUS_INFINITY.get(value.dtype) if large else None
