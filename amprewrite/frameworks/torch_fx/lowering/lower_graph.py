"""Lower a program: the passes in their order, on a copy of its graph."""

from collections.abc import Collection
from dataclasses import dataclass

from torch import nn
from torch.fx import Graph

from amprewrite.frameworks.torch_fx.lowering.channels_last import put_channels_last
from amprewrite.frameworks.torch_fx.lowering.constants import fold_constants
from amprewrite.frameworks.torch_fx.lowering.no_ops import remove_no_ops
from amprewrite.plan.fields import Lowering


@dataclass(frozen=True)
class Lowered:
    """A lowered graph.

    Attributes:
        graph: The graph.
        lowerings: Records of what was done, in the order of the passes.
    """

    graph: Graph
    lowerings: tuple[Lowering, ...] = ()


def lower_graph(
    graph: Graph,
    owner: nn.Module,
    constants: Collection[str] = frozenset(),
    *,
    trains: bool = True,
) -> Lowered:
    """Return a graph that computes the same in fewer and cheaper steps.

    Bits are the same, but for convolutions in another layout, whose float32 sums may
    have another order.

    Args:
        graph: The graph of a plan; it stays as it is.
        owner: The module with the attributes of the graph.
        constants: Names of attributes that nothing outside of the graph writes to.
        trains: Whether weights are trained: then no layout is changed.
    """
    lowered = Graph()
    lowered.output(lowered.graph_copy(graph, {}))
    found = remove_no_ops(lowered)
    found += fold_constants(lowered, owner, constants)
    if not trains:
        found += put_channels_last(lowered)
    return Lowered(lowered, found)
