"""Paths in a model, for a graph of a part of it."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from amprewrite.frameworks.torch_fx.capture.model_paths import (
    ModelPaths,
    local_name,
    weights_of,
)
from amprewrite.ir import parse_graph

GRAPH = """
%x: f32[4,4] input
linear = linear(%x) -> %linear: f32[4,4]
  | path="up"
relu = relu(%linear) -> %relu: f32[4,4]
return %relu
"""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 4)


def a_model() -> Any:
    model: Any = nn.Module()
    model.layers = nn.ModuleList([Block(), Block()])
    model.last = model.layers[1]
    tied: Any = nn.Linear(4, 4)
    tied.weight = model.get_parameter("layers.0.up.weight")
    model.tied = tied
    return model


@pytest.mark.parametrize(
    ("source", "local"),
    [
        ("L['self']._modules['up']._parameters['weight']", "up.weight"),
        ("L['self']._parameters['w']", "w"),
        ("L['self']._modules['a b']._modules['0']._buffers['n']", "a b.0.n"),
        ("L['other']._modules['up']._parameters['weight']", ""),
        ("L['self'].model._modules['up']._parameters['weight']", ""),
        ("L['x']", ""),
    ],
)
def test_a_source_is_a_path_below_the_module(source: str, local: str) -> None:
    assert local_name(source, "L['self']") == local


def test_parameters_are_found_by_their_placeholders() -> None:
    sources = {"p": "L['self']._parameters['w']", "q": "G['t']"}
    found = weights_of(sources, {"p": 3, "q": 1, "r": 0}, "L['self']")
    assert found == {3: "w"}


def test_parameters_say_which_module_runs() -> None:
    model = a_model()
    paths = ModelPaths(model)
    first, last = model.layers
    assert paths.prefix([("up.bias", first.up.bias)]) == "layers.0"
    assert paths.prefix([("up.bias", last.up.bias)]) == "layers.1"
    assert paths.prefix([("layers.0.up.bias", first.up.bias)]) == ""
    assert paths.prefix([("up.bias", Block().up.bias)]) is None
    assert paths.prefix([]) is None


def test_a_tied_parameter_alone_does_not_say_it() -> None:
    model = a_model()
    shared = ("weight", model.tied.weight)
    paths = ModelPaths(model)
    assert paths.prefix([shared]) == "layers.0.up"
    assert paths.prefix([shared, ("bias", model.tied.bias)]) == "tied"


def test_paths_begin_in_the_model() -> None:
    paths, graph = ModelPaths(a_model()), parse_graph(GRAPH)
    renamed = paths.renamed(graph, "layers.0")
    assert [op.path for op in renamed.ops] == ["layers.0.up", "layers.0"]
    assert [op.path for op in paths.renamed(graph, "").ops] == ["up", ""]
    renamed = paths.renamed(graph, "last")
    assert [op.path for op in renamed.ops] == ["layers.1.up", "layers.1"]


def test_modules_that_do_not_run_are_elsewhere() -> None:
    paths, graph = ModelPaths(a_model()), parse_graph(GRAPH)
    found = paths.elsewhere(paths.renamed(graph, "layers.0"))
    assert found == {"layers.1", "layers.1.up", "last", "last.up", "tied"}


def test_the_model_is_not_kept() -> None:
    model = a_model()
    paths = ModelPaths(model)
    assert paths.is_of(model)
    assert not paths.is_of(a_model())
    del model
    assert not paths.is_of(a_model())
