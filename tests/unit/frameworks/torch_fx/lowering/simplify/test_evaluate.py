"""Values of nodes that depend on attributes alone."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.fx import Graph

from amprewrite.frameworks.torch_fx.lowering.simplify.evaluate import value_of

aten: Any = torch.ops.aten


def test_each_node_is_computed_once() -> None:
    graph, owner = Graph(), nn.Module()
    owner.inner = nn.Module()
    owner.inner.table = torch.arange(3.0)
    node = graph.get_attr("inner.table")
    for _ in range(3000):  # deeper than Python's stack
        node = graph.call_function(aten.add.Tensor, (node, 1), {"alpha": 2})
    known: dict[Any, Any] = {}
    found = value_of(node, owner, known)
    assert torch.equal(found, torch.arange(3.0) + 6000)
    assert value_of(node, owner, known) is found
    assert len(known) == 3001
