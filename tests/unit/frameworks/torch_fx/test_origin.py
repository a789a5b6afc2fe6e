"""Where a node comes from."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.fx import Graph

from amprewrite.frameworks.torch_fx.origin import (
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
    assert source_line(traced(Users(), VECTOR)) == f"test_origin.py:{line}"


def test_a_node_without_a_trace_has_no_place():
    node = Graph().placeholder("x")
    assert (module_path(node), source_line(node)) == ("", "")


def test_the_innermost_module_is_named():
    inner = nn.Sequential(nn.Sequential(nn.ReLU()))
    node = traced(inner, VECTOR)
    assert module_path(node) == "function.0.0"


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
