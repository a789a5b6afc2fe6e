"""The class of scaled models: copies, pickles, the scale plan."""

import copy
import io
import pickle

import pytest

torch = pytest.importorskip("torch")
from torch import nn

import amprewrite
from amprewrite.unit_scaling import check_gradient_validity

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


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 16, bias=False)
        self.last = nn.Linear(16, 16, bias=False)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))

    def tie(self):
        self.last.weight = self.first.weight


def test_weights_that_are_tied_or_untied_later_are_scaled_as_they_are():
    """A weight with two uses is no cut edge: its factors would be wrong."""
    x = torch.randn(8, 16)
    model = Tied()
    scaled = amprewrite.unit_scale(model, (x,))
    apart = scaled.scales
    scaled.tie()
    scaled(x)
    assert (apart.cut, scaled.scales.cut) == (5, 1)  # a loop by way of the weight
    assert min(check_gradient_validity(scaled, (x,)).values()) > 0.9999
    scaled.last.weight = nn.Parameter(torch.randn(16, 16))
    scaled(x)
    assert scaled.scales == apart
    model.tie()
    twin = amprewrite.unit_scale(model, (x,))
    scaled.tie()
    scaled(x)
    assert scaled.scales == twin.scales
