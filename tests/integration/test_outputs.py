"""What an output is beside its values: which tensor it is, whether it has gradients."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import amprewrite
from tests.torch_programs import (
    Program,
    floats,
    in_full,
    relative_error,
)

ROUNDING = 2.0**-8

WAYS = pytest.mark.parametrize("way", ["export", "dynamo"])
"""Captured at conversion, or at the first call."""


def converted(model: nn.Module, way: str, *args: Any) -> Any:
    return amprewrite.convert(model, args=args if way == "export" else None)


@WAYS
@pytest.mark.parametrize("training", [False, True])
def test_an_output_that_is_an_input_or_a_weight_stays_one(
    way: str, *, training: bool
) -> None:
    def forward(m: Any, x: Any) -> Any:
        h = m.a(x)
        return h, h, x, x.float(), x[0], m.a.bias, m.n(h)

    model = Program(forward, a=nn.Linear(8, 8), n=nn.LayerNorm(8)).train(training)
    x = torch.randn(4, 8)
    program = converted(model, way, x)
    one, two, same, as_float, row, bias, _ = program(x)
    assert one is two
    assert same is as_float is x
    assert row.data_ptr() == x.data_ptr()
    assert bias.dtype == torch.float32
    if training:
        assert bias is model.a.bias


def inside(mode: Any) -> Any:
    def forward(m: Any, x: Any) -> Any:
        h = m.a(x)
        with mode():
            g = m.a(h)
        return h, g, m.a(h), m.a(x).detach()

    return forward


def decorated(mode: Any) -> Any:
    return mode()(lambda m, x: m.a(x))


@WAYS
@pytest.mark.parametrize("kind", [inside, decorated])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("training", [False, True])
def test_outputs_require_gradients_as_those_of_the_model(
    way: str, kind: Any, mode: Any, *, training: bool
) -> None:
    model = Program(kind(mode), a=nn.Linear(8, 8)).train(training)
    x = torch.randn(4, 8)
    program = converted(model, way, x)
    for around in (torch.enable_grad, torch.no_grad, torch.inference_mode):
        with around():
            found, expected = floats(program(x)), floats(model(x))
        assert [t.requires_grad for t in found] == [t.requires_grad for t in expected]
        assert relative_error(found, expected) < 4 * ROUNDING


@WAYS
def test_a_constant_that_is_written_into_a_low_tensor(way: str) -> None:
    def forward(m: Any, x: Any) -> Any:
        h = m.a(x)
        h[0] = 1.0
        return m.a(h), h[0]

    model, x = Program(forward, a=nn.Linear(8, 8)).eval(), torch.randn(4, 8)
    program = converted(model, way, x)
    assert relative_error(program(x), in_full(model, x)) < 2 * ROUNDING
