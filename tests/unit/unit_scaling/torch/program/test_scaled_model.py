"""The class of scaled models: copies, pickles, the scale plan."""

import copy
import io
import pickle

import pytest

torch = pytest.importorskip("torch")
from torch import nn

import amprewrite

X = torch.linspace(-1, 1, 32).reshape(4, 8)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.calls = 0

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


@pytest.fixture(scope="module")
def scaled():
    torch.manual_seed(0)
    return amprewrite.unit_scale(Residual(), (X,))


def saved_and_loaded(model):
    file = io.BytesIO()
    torch.save(model, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=False)


@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), saved_and_loaded],
    ids=["copy", "pickle", "save"],
)
def test_a_copy_computes_the_same_and_is_its_own(scaled, copied):
    before = scaled(X)
    made = copied(scaled)
    assert type(made) is type(scaled)
    assert made.scales == scaled.scales
    assert torch.equal(made(X), before)
    with torch.no_grad():
        made.up.weight.mul_(2)
    assert not torch.equal(made(X), before)
    assert torch.equal(scaled(X), before)
    made(X).sum().backward()
    assert scaled.up.weight.grad is None
    assert made.calls == 0


def test_averages_of_weights_copy_the_model(scaled):
    average = torch.optim.swa_utils.AveragedModel(scaled)
    average.update_parameters(scaled)
    assert torch.equal(average(X), scaled(X))
