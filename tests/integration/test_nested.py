"""Nested tensors: given ones are left alone, ones made inside are refused clearly."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.nn import functional as F  # noqa: N812  # torch's own name

import amprewrite
from amprewrite.errors import AmpWarning, CaptureError
from tests.torch_programs import Program

pytestmark = pytest.mark.filterwarnings(
    "ignore:The PyTorch API of nested tensors is in prototype stage"
)

WAYS = pytest.mark.parametrize("way", ["export", "dynamo"])
"""Captured at conversion, or at the first call."""


def jagged(*rows: int) -> Any:
    parts = [torch.randn(n, 8) for n in rows]
    return torch.nested.nested_tensor(parts, layout=torch.jagged)


def layers(m: Any, x: Any) -> Any:
    return m.b(F.relu(m.a(x)))


def attention(m: Any, x: Any) -> Any:
    q = m.a(x).unflatten(-1, [2, 4]).transpose(1, 2)
    return F.scaled_dot_product_attention(q, q, q).transpose(1, 2).flatten(-2)


@WAYS
@pytest.mark.parametrize("forward", [layers, attention])
@pytest.mark.parametrize("training", [False, True])
def test_a_jagged_input_is_left_alone(
    way: str, forward: Any, *, training: bool
) -> None:
    model = Program(forward, a=nn.Linear(8, 8), b=nn.Linear(8, 8)).train(training)
    x = jagged(3, 5)

    def captured() -> Any:
        program = amprewrite.convert(model, args=(x,) if way == "export" else None)
        program(x)
        return program

    with pytest.warns(AmpWarning, match="rewritten 0 of"):
        program = captured()
    for given in (x, jagged(2, 7)):
        found, expected = program(given), model(given)
        assert torch.equal(found.values(), expected.values())
        assert torch.equal(found.offsets(), given.offsets())


@WAYS
def test_a_jagged_tensor_that_the_model_makes_is_refused(way: str) -> None:
    def forward(m: Any, x: Any) -> Any:
        rows = torch.nested.nested_tensor([x[0], x[1, :3]], layout=torch.jagged)
        return m.a(rows).values()

    model, x = Program(forward, a=nn.Linear(8, 8)).eval(), torch.randn(2, 5, 8)
    with pytest.raises(CaptureError, match=r"keep that part out with torch\.compiler"):
        amprewrite.convert(model, args=(x,) if way == "export" else None)(x)
