"""Where a node comes from."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.fx import Graph

from amprewrite.frameworks.torch_fx.aten.ops import (
    model_variable,
    module_path,
    source_frame,
    source_line,
    user_frames,
)
from tests.torch_programs import traced

VECTOR = torch.ones(4)


class Users(nn.Module):
    def forward(self, x):
        return torch.nn.functional.gelu(x)


def test_the_innermost_frame_of_the_user_is_named():
    line = Users.forward.__code__.co_firstlineno + 1
    assert source_line(traced(Users(), VECTOR)) == f"test_source_location.py:{line}"


def test_a_node_without_a_trace_has_no_place():
    node = Graph().placeholder("x")
    assert (module_path(node), source_line(node)) == ("", "")


def test_the_innermost_module_is_named():
    inner = nn.Sequential(nn.Sequential(nn.ReLU()))
    node = traced(inner, VECTOR)
    assert module_path(node) == "function.0.0"


def stacked(*paths):
    graph = Graph()
    for index, path in enumerate(paths):
        node = graph.placeholder(f"x{index}")
        node.meta["nn_module_stack"] = {str(index): (path, nn.Module)}
    return graph


@pytest.mark.parametrize(
    ("paths", "found"),
    [
        (["L['self'].layer.0", "L['self'].layer.1"], ["layer.0", "layer.1"]),
        (["L['self']._modules['a']", "L['self'].b[0]"], ["a", "b.0"]),
        (["L['model'].a", "L['model']"], ["a", ""]),
        (["G['model'].a", "G['model'].b"], ["a", "b"]),
        (["L['fn']"], [""]),
        (["L['one'].a", "L['two'].a"], ["one.a", "two.a"]),
        (["L['self'].a", "G['other'].a"], ["a", "other.a"]),
    ],
)
def test_paths_of_dynamo_begin_inside_the_model(paths, found):
    graph = stacked(*paths)
    model = model_variable(graph)
    assert [module_path(node, model) for node in graph.nodes] == found


def test_the_frame_of_a_node_is_that_of_the_code_that_made_it():
    seen = []

    class Watching(nn.Module):
        def forward(self, x):
            return watch() or x + 1

    def watch():
        seen.append(user_frames())

    node = traced(Watching(), VECTOR)
    inner, forward = seen[-1]
    assert source_frame(node) == forward
    assert {inner[0], forward[0]} == {__file__}
    assert inner[1] == watch.__code__.co_firstlineno + 1
    assert source_frame(Graph().placeholder("x")) is None
