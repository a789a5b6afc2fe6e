"""Lower a program: the passes in their order, on a copy of its graph."""

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import nn
from torch.fx import Graph

from amprewrite.frameworks.torch_fx.lowering import simplify
from amprewrite.frameworks.torch_fx.lowering.activations import name_activations
from amprewrite.frameworks.torch_fx.lowering.channels_last import (
    paying,
    put_channels_last,
)
from amprewrite.frameworks.torch_fx.lowering.packing import kernels
from amprewrite.frameworks.torch_fx.lowering.packing.fuse_epilogues import (
    fuse_epilogues,
    put_relus_on_bits,
)
from amprewrite.frameworks.torch_fx.lowering.packing.pack_layers import pack_layers
from amprewrite.frameworks.torch_fx.lowering.packing.packed_layer import PackedLayer
from amprewrite.plan.fields import Lowering


@dataclass(frozen=True)
class Lowered:
    """A lowered graph.

    Attributes:
        graph: The graph.
        lowerings: Records of what was done, in the order of the passes.
        packed: The same for calls without gradients, with packed weights and early
            casts; None without any.
    """

    graph: Graph
    lowerings: tuple[Lowering, ...] = ()
    packed: Graph | None = None


def lower_graph(
    graph: Graph,
    owner: nn.Module,
    constants: Collection[str] = frozenset(),
    *,
    trains: bool = True,
    packs: bool = False,
    copies: Collection[str] | None = None,
) -> Lowered:
    """Return a graph that computes the same in fewer and cheaper steps.

    Bits are the same, but for convolutions in another layout and for packed weights,
    whose float32 sums may have another order, and for values that are read full and for
    fused ops, which are rounded less. An
    activation between packed convolutions may differ in the last bit. Gradients of
    inputs are summed before merged ops, not after them.

    Args:
        graph: The graph of a plan; it stays as it is.
        owner: The module with the attributes of the graph.
        constants: Names of attributes that nothing outside of the graph writes to.
        trains: Whether weights are trained: then no layout is changed, and no ops are
            merged, whose gradients would be summed in another order.
        packs: Whether weights may be packed, unless they are trained: calls without
            gradients are to run the packed graph.
        copies: Names of inputs that are low copies of weights, which the caller of the
            graph alone has: these are packed, and no attributes.
    """
    lowered = simplify.copied(graph)
    found = simplify.remove_no_ops(lowered)
    if not trains:
        # So that equal values round alike.
        found += simplify.merge_repeats(lowered, owner)
        found += name_activations(lowered, owner)
        found += simplify.remove_round_trips(lowered, owner)
    found += simplify.fold_constants(lowered, owner, constants)
    if trains:
        return Lowered(lowered, found)
    packed = simplify.copied(lowered)
    in_layout = put_channels_last(lowered)
    if not packs:
        return Lowered(lowered, found + in_layout)
    early = simplify.cast_early(packed, owner)
    without_packing = simplify.copied(packed)
    fuses = kernels.convolves
    full = paying(packed, fuses) if fuses(torch.float32) and copies is None else ()
    changed = put_channels_last(packed, full, fuses)
    # Of ops of ATen, before others replace them.
    written = simplify.written_values(packed, owner)
    layers = pack_layers(packed, owner, copies)
    layers += fuse_epilogues(packed, written)
    if any(isinstance(node.target, PackedLayer) for node in packed.nodes):
        layers += put_relus_on_bits(packed)
        return Lowered(lowered, found + early + changed + layers, packed)
    found += early + put_channels_last(without_packing) + layers
    return Lowered(lowered, found, without_packing if early else None)
