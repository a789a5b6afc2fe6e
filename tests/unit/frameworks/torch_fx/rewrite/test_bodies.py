"""Bodies of higher-order ops."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.utils.checkpoint import checkpoint

from amprewrite.frameworks.torch_fx.executor import attribute
from amprewrite.frameworks.torch_fx.rewrite.read import own_body, region_body


def outer() -> Any:
    """Return a graph that calls one body twice."""
    inner = torch.fx.symbolic_trace(lambda x: x + 1)
    root = nn.Module()
    root.add_module("part", inner)
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    body = graph.get_attr("part")
    first = graph.call_function(checkpoint, (body, x))
    second = graph.call_function(checkpoint, (graph.get_attr("part"), first))
    graph.output(second)
    return torch.fx.GraphModule(root, graph)


def test_a_path_has_a_part_for_each_dot() -> None:
    layer = nn.Linear(2, 2)
    model = nn.Sequential(nn.Sequential(layer))
    assert attribute(model, "0.0.weight") is layer.weight


def test_a_body_that_is_called_twice_is_copied() -> None:
    module, entered = outer(), set[str]()
    nodes = module.graph.find_nodes(op="get_attr")
    one, two = (own_body(module, node, entered) for node in nodes)
    assert one is not two
    assert [str(node.target) for node in nodes] == ["part", "part_1"]
    assert attribute(module, "part_1") is two
    assert [n.target for n in two.graph.nodes] == [n.target for n in one.graph.nodes]


def test_an_op_of_aten_has_no_body() -> None:
    graph = torch.fx.Graph()
    node = graph.call_function(torch.ops.aten.relu.default, (graph.placeholder("x"),))
    assert region_body(node) is None


def test_the_body_of_a_region_is_among_its_arguments() -> None:
    def forward(x: Any) -> Any:
        with torch.autocast("cpu", enabled=False):
            return x + 1

    class Model(nn.Module):
        def forward(self, x: Any) -> Any:
            return forward(x) * 2

    program = torch.export.export(Model(), (torch.randn(2),), strict=False)
    found = [
        f
        for n in program.graph.nodes
        if n.op == "call_function" and (f := region_body(n)) is not None
    ]
    ((body, fence),) = found
    assert body.op == "get_attr"
    assert "autocast" in fence
