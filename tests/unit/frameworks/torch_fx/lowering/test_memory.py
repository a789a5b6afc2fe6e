"""Memory of a graph that is written to, or returned."""

import pytest

torch = pytest.importorskip("torch")

from torch.fx import Graph, Node

from amprewrite.frameworks.torch_fx.lowering.simplify import Memory

aten = torch.ops.aten


def written(target: object) -> tuple[Memory, dict[str, Node]]:
    """Return the memory of a graph that applies ``target`` to one of its values."""
    graph = Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    product = graph.call_function(aten.mul.Tensor, (x, y))
    view = graph.call_function(aten.view.default, (product, [-1]))
    other = graph.call_function(aten.exp.default, (product,))
    nodes = {"x": x, "y": y, "product": product, "view": view, "other": other}
    graph.call_function(aten.add_.Tensor, (nodes[str(target)], 1.0))
    graph.output((view,))
    for node in graph.nodes:
        node.meta["val"] = torch.ones(2)
    return Memory(graph), nodes


def test_a_write_to_a_view_is_one_to_its_base() -> None:
    memory, nodes = written("view")
    found = {name for name, node in nodes.items() if memory.is_written([node])}
    assert found == {"product", "view"}


def test_a_write_to_an_input_is_one_to_each_that_may_be_the_same() -> None:
    memory, nodes = written("x")
    assert memory.is_written([nodes["y"]])
    assert not memory.is_written([nodes["product"], nodes["other"]])


def test_a_returned_view_is_its_base_returned() -> None:
    memory, nodes = written("other")
    found = {name for name, node in nodes.items() if memory.is_returned([node])}
    assert found == {"product", "view"}
    assert memory.is_written([nodes["x"], nodes["other"]])
