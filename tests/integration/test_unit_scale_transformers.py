"""Unit scaling of transformers models: residual additions, and true gradients."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from torch import nn

import amprewrite
from amprewrite.unit_scaling import check_gradient_validity
from tests.transformers_models import bert, gpt2, llama, vit


class Loss(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, labels):
        return self.model(x, labels=labels).loss


def text():
    ids = torch.randint(5, 100, (2, 8))
    return ids, ids


CASES = {
    "gpt2": (gpt2, text),
    "llama": (llama, text),
    "bert": (bert, lambda: (text()[0], torch.tensor([0, 1]))),
    "vit": (vit, lambda: (torch.randn(2, 3, 16, 16), torch.tensor([0, 1]))),
}


@pytest.mark.parametrize("name", CASES)
def test_a_model_of_two_layers(name):
    torch.manual_seed(0)
    make, draw = CASES[name]
    args = draw()
    model = amprewrite.unit_scale(Loss(make().eval()), args)
    assert len(model.scales.residuals) == 4
    assert not [
        k for k, c in check_gradient_validity(model, args).items() if c < 0.9999
    ]
    several = tuple(torch.cat([x, x, x]) for x in args)
    torch.testing.assert_close(model(*several), model(*args))
    assert len(vars(model)["_amprewrite_scaled"].found) == 1
