"""Errors about ops without a gradient name the op."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from amprewrite.execute.sensitivity import no_gradient, place_of
from amprewrite.frameworks.torch_fx.probes.sensitivity import (
    blamed,
    check_differentiable,
)
from tests.placement_problem import graph_of

GRAPH = graph_of("""
    %x: f32[2] input
    y = tanh(%x) -> %v: f32[2]
    return %v
""")
OP = replace(GRAPH.ops[0], native="aten.tanh.default")
GRAPH = replace(GRAPH, ops=(OP,))


def test_the_op_that_an_error_names_is_blamed():
    assert place_of(OP) in str(no_gradient(OP, None, "give one"))
    assert place_of(OP) in str(blamed(GRAPH, RuntimeError(f"{OP.native} fails")))
    assert "an op of the model has none: gone" in str(blamed(GRAPH, ValueError("gone")))


def test_a_result_that_gradients_reach_is_fine():
    x = torch.ones(2, requires_grad=True)
    check_differentiable(OP, (x,), x * 2)
