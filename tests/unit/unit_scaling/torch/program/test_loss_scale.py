"""The warning of a loss scale, and calls under torch.compile."""

import warnings

import pytest

torch = pytest.importorskip("torch")
from torch import nn

import amprewrite


class Loss(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.drop = nn.Linear(16, 4), nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(self.linear(x)).square().mean()


def scaled():
    torch.manual_seed(0)
    x = torch.randn(8, 16)
    return amprewrite.unit_scale(Loss().eval(), (x,)), x


def test_a_loss_scale_is_warned_of_once():
    model, x = scaled()
    with pytest.warns(UserWarning, match="gradient of the loss is 1024; gradients"):
        (model(x) * 1024).backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (model(x) * 1024).backward()


def test_a_plain_loss_is_not():
    model, x = scaled()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(x).backward()


def test_a_compiled_model_follows_the_mode():
    model, x = scaled()
    want = model(x)
    compiled = torch.compile(model, backend="eager")
    torch.testing.assert_close(compiled(x), want)
    model.train()
    assert compiled(x).item() != pytest.approx(want.item())
    model.eval()
    torch.testing.assert_close(compiled(x), want)


def test_conversion_takes_the_program_of_its_mode():
    model, x = scaled()
    want = model(x)
    model.train()(x)
    low = amprewrite.convert(model.eval(), "bf16", args=(x,))
    torch.testing.assert_close(low(x), want, rtol=0.02, atol=0.02)
