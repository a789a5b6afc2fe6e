"""Values of nodes as plain data give the same values again."""

import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.fx import Graph

from amprewrite.frameworks.torch_fx.capture.cast_intent import CHOSEN
from amprewrite.frameworks.torch_fx.compat import tensor_internals
from amprewrite.frameworks.torch_fx.module.stored.metadata import StoredMetadata
from tests.torch_programs import Program

aten = torch.ops.aten


def stored(graph: Graph) -> StoredMetadata:
    """Return the metadata of a graph after a pickle."""
    return pickle.loads(pickle.dumps(StoredMetadata.of(graph)))


def restored(graph: Graph) -> dict[str, Any]:
    """Return the metadata of each node after a pickle, by its name."""
    twin = Graph()
    twin.output(twin.graph_copy(graph, {}))
    for node in twin.nodes:
        node.meta = {}
    stored(graph).restore(twin)
    return {node.name: node.meta for node in twin.nodes}


def views(_: Any, x: Any) -> Any:
    part = x[1:, ::2].t()
    return part.exp().reshape(-1), x.max(dim=0).indices, x.size(0)


def test_extents_strides_and_shared_storages_are_the_same() -> None:
    program = torch.export.export(Program(views), (torch.ones(4, 6),))
    graph = program.module(check_guards=False).graph
    found = restored(graph)
    valued = [node for node in graph.nodes if "val" in node.meta]
    tensors = [n for n in valued if isinstance(n.meta["val"], torch.Tensor)]
    assert len(tensors) > 5
    for node in tensors:
        one, other = node.meta["val"], found[node.name]["val"]
        for layout in (
            lambda t: (t.dtype, t.device, t.shape, t.stride(), t.storage_offset()),
            lambda t: t.untyped_storage().nbytes(),
        ):
            assert layout(one) == layout(other)
        for second in tensors:
            pair = other, found[second.name]["val"]
            wanted = tensor_internals.may_share_storage(one, second.meta["val"])
            assert tensor_internals.may_share_storage(*pair) == wanted
    assert any("slice" in node.name for node in tensors)
    (pair,) = [n for n in valued if isinstance(n.meta["val"], (tuple, list))]
    assert len(found[pair.name]["val"]) == len(pair.meta["val"]) == 2


def test_marks_are_kept() -> None:
    graph = Graph()
    x = graph.placeholder("x")
    x.meta = {"amprewrite": "cast", CHOSEN: "follows", "stack_trace": "elsewhere"}
    graph.output(graph.call_function(aten.relu.default, (x,)))
    found = restored(graph)
    assert found.pop("x") == {"amprewrite": "cast", CHOSEN: "follows"}
    assert not any(found.values())


@pytest.mark.parametrize(
    "value",
    [
        torch.eye(2).to_sparse(),
        torch.ones(2, dtype=torch.complex64).conj(),
        object(),
    ],
)
def test_a_graph_with_a_value_that_has_no_description_keeps_none(value: Any) -> None:
    graph = Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    x.meta, y.meta = {"val": torch.ones(2), "amprewrite": "cast"}, {"val": (1, value)}
    graph.output((x, y))
    found = restored(graph)
    assert found["x"] == {"amprewrite": "cast"}
    assert not found["y"]


def test_symbolic_extents_have_no_description() -> None:
    shapes = {"args": ({0: torch.export.Dim("batch", min=2, max=9)},)}
    program = torch.export.export(
        Program(lambda _, x: x.exp()), (torch.ones(4, 6),), dynamic_shapes=shapes
    )
    found = StoredMetadata.of(program.module(check_guards=False).graph)
    assert not found.values
