"""Which ops can be restored, and how values that are kept full are handed on."""

import pytest

pytest.importorskip("torch")

import numpy as np
import torch
from torch import nn

import amprewrite
from amprewrite.frameworks.torch_fx.probes.restored.steps import restorable
from amprewrite.ir import Op, ProgramGraph, Value
from amprewrite.measure.runs import Call
from amprewrite.registry import framework_of


def test_ops_at_a_storage_that_is_written_are_not_restorable():
    values = {name: Value(name, "float32", (4,)) for name in ("x", "a", "b", "d")}
    values["c"] = Value("c", "float32", (4,), alias="b")
    ops = (
        Op("a", "relu", "relu", ("x",), ("a",)),
        Op("b", "relu", "relu", ("x",), ("b",)),
        Op("c", "add", "add_", ("b", "a"), ("c",), mutates=(0,)),
        Op("d", "exp", "exp", ("c",), ("d",)),
    )
    graph = ProgramGraph(values, ops, ("a", "d"))
    assert restorable(graph) == {"a"}


class Chain(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x):
        return torch.softmax(self.b(self.a(x).reshape(-1, 4, 16).transpose(0, 1)), -1)


def test_a_value_that_is_kept_full_is_moved_and_widened_without_rounding():
    torch.manual_seed(0)
    model, args = Chain().eval(), (torch.randn(8, 16),)
    converted = amprewrite.convert(model, args=args)
    found = framework_of(model).ablation(model, converted, Call(args, {}))
    assert not isinstance(found, str)
    low = {decision.op for decision in found.plan.lowered}
    assert {"linear", "reshape", "transpose", "linear_1"} <= low
    made = found.run({"linear", "linear_1"}).outputs["output"]
    with torch.no_grad():
        np.testing.assert_allclose(made, model(*args).double().numpy(), rtol=1e-5)
        half = found.run({"linear"}).outputs["output"]
        assert (half != converted(*args).double().numpy()).any()
    assert set(found.seconds) == {"linear", "linear_1"}
