"""Cells written out are the cells, and no less accurate than under autocast."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import amprewrite
from amprewrite.frameworks.torch_fx.aten.dynamo_to_aten import WRITTEN_OUT
from tests.torch_programs import relative_error

KINDS = {
    "gru_cell": nn.GRUCell,
    "lstm_cell": nn.LSTMCell,
    "rnn_tanh_cell": nn.RNNCell,
    "rnn_relu_cell": lambda *sizes, **keys: nn.RNNCell(
        *sizes, nonlinearity="relu", **keys
    ),
}


class Unrolled(nn.Module):
    """A cell run over a sequence."""

    def __init__(self, cell) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, xs):
        state = None
        for x in xs:
            state = self.cell(x, state)
        return state


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("bias", [True, False])
def test_the_formulas_are_those_of_torch(name, bias) -> None:
    torch.manual_seed(0)
    cell = KINDS[name](6, 5, bias=bias).double()
    x, h = torch.randn(3, 6).double(), torch.randn(3, 5).double()
    state = (h, torch.randn(3, 5).double()) if name == "lstm_cell" else h
    wanted = cell(x, state)
    weights = [p for _, p in cell.named_parameters()]
    torch.testing.assert_close(WRITTEN_OUT[name](x, state, *weights), wanted)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("way", ["export", "lazy"])
def test_errors_are_no_larger_than_those_of_autocast(name, way) -> None:
    torch.manual_seed(0)
    model = Unrolled(KINDS[name](32, 48)).eval()
    xs = torch.randn(12, 16, 32)
    args = (xs,) if way == "export" else None
    converted = amprewrite.convert(model, args=args)
    with torch.no_grad():
        exact = Unrolled(KINDS[name](32, 48)).double()
        exact.load_state_dict(model.double().state_dict())
        wanted = exact(xs.double())
        model.float()
        with torch.autocast("cpu", torch.bfloat16):
            theirs = relative_error(model(xs), wanted)
        ours = relative_error(converted(xs), wanted)
    assert 0 < ours <= 1.1 * theirs
    assert not any("cell" in d.canonical for d in converted.plan.decisions)
