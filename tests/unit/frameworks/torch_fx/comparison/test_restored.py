"""How values that are kept full are handed on, also by writes in place."""

import pytest

pytest.importorskip("torch")

import numpy as np
import torch
from torch import nn

import amprewrite
from amprewrite.measure.runs import Call
from amprewrite.registry import framework_of
from amprewrite.verify.fix import held


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


class Writes(nn.Module):
    """Writes in place to a result, to a view of it, and after it was read."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x):
        h = self.a(x)
        h += self.b(torch.relu(h))
        h.mul_(1.7).relu_()
        y = self.c(h)
        h[:, 2:8].add_(y[:, :6])
        return h.sigmoid() + self.b(h), h


@pytest.mark.parametrize("op", ["linear", "add_", "linear_2", "add__1", "linear_3"])
def test_beside_writes_in_place_a_restored_op_is_one_that_is_denied(op):
    torch.manual_seed(0)
    model, args = Writes().eval(), (torch.randn(4, 16),)
    converted = amprewrite.convert(model, args=args)
    found = framework_of(model).ablation(model, converted, Call(args, {}))
    assert not isinstance(found, str)
    assert len(found.restorable) == len(found.graph.ops)
    rules = [{"op_name": op, "class": "deny"}]
    rules += [
        {"op_name": o, "class": "allow"} for o in held(found.plan, found.graph, [op])
    ]
    denied = amprewrite.convert(model, args=args, overrides=rules)
    with torch.no_grad():
        for restored, same in (
            ((), converted),
            ({op}, denied),
            (found.restorable, model),
        ):
            made = found.run(restored).outputs.values()
            for one, other in zip(made, same(*args), strict=True):
                np.testing.assert_array_equal(one, other.double().numpy())


class Wider(nn.Module):
    """Writes a full value to a low one, so that the storage is a cast of it."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x):
        h = self.a(x)
        h[:, :4] = x[:, :4]
        return self.b(torch.exp(h))


def test_a_restored_op_reads_what_was_written():
    torch.manual_seed(0)
    model, args = Wider().eval(), (torch.randn(4, 16),)
    converted = amprewrite.convert(model, args=args)
    found = framework_of(model).ablation(model, converted, Call(args, {}))
    assert not isinstance(found, str)
    assert found.plan.by_op["linear"].results == ("bfloat16",)
    made = found.run({"exp"}).outputs["output"]  # exact already
    with torch.no_grad():
        np.testing.assert_array_equal(made, converted(*args).double().numpy())
