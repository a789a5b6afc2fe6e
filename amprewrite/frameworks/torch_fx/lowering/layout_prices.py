"""Choose the float32 convolutions that are faster with the channels last.

A network of them gains in each, and pays for copies where other ops read and write its
values: so each network is priced as a whole. The prices are nanoseconds, measured with
packed weights on an AVX2 core (``benchmarks.packing``); more threads divide all of them
alike, but for those of calls.
"""

from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Any

import torch
from torch.fx import Graph, Node

from amprewrite.frameworks.torch_fx.compat import tensor_internals
from amprewrite.frameworks.torch_fx.lowering.channels_last import (
    CONVOLUTIONS,
    COPY,
    LAST,
    groups,
    may_change,
    products,
    put_channels_last,
)

aten = torch.ops.aten

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
    tried = Graph()
    tried.output(tried.graph_copy(graph, {}))
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
    if groups(node) == 1:
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
    if groups(node) != 1:
        return _BY_PRODUCT_ALONE
    weight: Any = node.args[1]
    return _BY_PRODUCT if weight.meta["val"].shape[1] >= _LEAST_INPUTS else 0.0


def _elements(node: Node) -> int:
    return prod(map(tensor_internals.example_of, node.meta["val"].shape))
