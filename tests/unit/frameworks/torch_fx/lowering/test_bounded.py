"""Activations that stop at a bound, in code with constant weights."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import amprewrite
from amprewrite.frameworks.torch_fx.lowering.frozen import keep_nan

aten = torch.ops.aten
VALUES = torch.tensor(
    [-torch.inf, -4.0, -0.5, 0.0, 0.5, 4.0, 9.0, torch.inf, torch.nan]
)


def relu(x: Tensor) -> Tensor:
    return aten.relu.default(x * 1)


def between(x: Tensor) -> Tensor:
    return aten.clamp_max.default(aten.clamp_min.default(x * 1, -1.0), 1.0)


def never(x: Tensor) -> Tensor:
    return aten.clamp_max.default(aten.clamp_min.default(x * 1, 1.0), -1.0)


def gate(x: Tensor) -> Tensor:
    return aten.clamp_max.default(aten.clamp_min.default(x * 1 + 3, 0), 6) / 6


def hardswish(x: Tensor) -> Tensor:
    y = x * 1
    return y * aten.clamp_max.default(aten.clamp_min.default(y + 3, 0), 6) / 6


def read_twice(x: Tensor) -> Tensor:
    low = aten.clamp_min.default(x * 1, -1.0)
    return aten.clamp_max.default(low, 1.0) + low


LOW_FIRST, HIGH_FIRST = ["clamp_min", "clamp_max"], ["clamp_max", "clamp_min"]


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (relu, ["clamp_min"]),
        (between, HIGH_FIRST),
        (gate, HIGH_FIRST),
        (hardswish, LOW_FIRST),
        (never, LOW_FIRST),
        (read_twice, LOW_FIRST),
    ],
)
def test_the_values_are_the_same(
    function: Callable[[Tensor], Tensor], names: list[str]
) -> None:
    module: Any = make_fx(function)(VALUES)
    keep_nan(module.graph)
    module.recompile()
    torch.testing.assert_close(
        module(VALUES), function(VALUES), rtol=0, atol=0, equal_nan=True
    )
    targets = [n.target for n in module.graph.nodes if n.op == "call_function"]
    called = [target.overloadpacket.__name__ for target in targets]
    assert [name for name in called if name in (*LOW_FIRST, "relu")] == names


class _Bounded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(3, 16, 3) for _ in range(3))

    def forward(self, x: Tensor) -> list[Tensor]:
        acts = (nn.ReLU(), nn.ReLU6(), nn.Hardsigmoid())
        return [act(one(x)) for act, one in zip(acts, self.layers, strict=True)]


@pytest.mark.slow
def test_frozen_code_keeps_nan() -> None:
    """Ten seconds of compilation: only inductor's own fusions lose them."""
    model, x = _Bounded().eval(), torch.randn(1, 3, 8, 8)
    x[0, 0, 3, 3] = torch.nan
    converted = amprewrite.convert(model, "off", args=(x,), compile=True)
    with torch.no_grad():
        for found, wanted in zip(converted(x), model(x), strict=True):
            assert wanted.isnan().any()
            assert torch.equal(found.isnan(), wanted.isnan())
