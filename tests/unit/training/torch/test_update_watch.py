"""Lost updates of optimizers of torch against a simulation in float64."""

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from amprewrite.errors import ArgumentError, OptimizerError, UnsupportedError
from amprewrite.training.torch import lost_updates

RATE, BETAS, EPS = 1e-3, (0.9, 0.999), 1e-8


class Sgd:
    """Momentum in NumPy."""

    def __init__(self):
        self.held = None

    def update(self, g):
        self.held = g if self.held is None else 0.9 * self.held + g
        return -RATE * self.held


class Adam:
    """Adam in NumPy. Source: Kingma and Ba, Adam (arXiv 1412.6980), algorithm 1."""

    def __init__(self):
        self.first, self.second, self.steps = 0.0, 0.0, 0

    def update(self, g):
        self.steps += 1
        self.first = BETAS[0] * self.first + (1 - BETAS[0]) * g
        self.second = BETAS[1] * self.second + (1 - BETAS[1]) * g * g
        first = self.first / (1 - BETAS[0] ** self.steps)
        second = self.second / (1 - BETAS[1] ** self.steps)
        return -RATE * first / (np.sqrt(second) + EPS)


def half_ulp(weights):
    """Half the distance of float16 numbers to the next larger one."""
    return np.spacing(np.abs(weights).astype(np.float16)).astype(np.float64) / 2


@pytest.mark.parametrize(
    ("kind", "options", "simulated"),
    [
        (torch.optim.SGD, {"momentum": 0.9}, Sgd),
        (torch.optim.Adam, {"betas": BETAS, "eps": EPS}, Adam),
    ],
)
def test_counts_are_those_of_a_simulation(kind, options, simulated):
    rng = np.random.default_rng(0)
    # None is a power of two: its distances below and above differ.
    start = (1 + rng.integers(1, 1024, 500) / 1024) * 2.0 ** rng.integers(-6, 3, 500)
    model = nn.ParameterDict({"w": nn.Parameter(torch.tensor(start).float())})
    optimizer, other = kind(model.parameters(), lr=RATE, **options), simulated()
    with lost_updates(optimizer, "float16", model=model) as found:
        for step in range(3):
            weights = model["w"].detach().double().numpy()
            stored = weights.astype(np.float16).astype(np.float64)
            gradient = torch.tensor(rng.standard_normal(500)).float()
            model["w"].grad = gradient
            moved = other.update(gradient.double().numpy())
            optimizer.step()
            counts = found.steps[step].parameters["w"]
            lost = np.sum(np.abs(moved) < half_ulp(stored))
            # Behind the first step the optimizer has rounded weights and state.
            assert abs(counts.lost - lost) <= (0 if step == 0 else 2)
            assert 40 < lost < 460
            assert counts.updates == 500
    assert found.total.total.weights == 1500


def make(dtype=torch.float32, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 2)).to(dtype)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2, **options)


def train(model, optimizer, steps=4):
    torch.manual_seed(1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(16, 8).to(next(model.parameters()))).square().sum().backward()
        optimizer.step()
        scheduler.step()
    return [p.detach().clone() for p in model.parameters()], torch.get_rng_state()


@pytest.mark.parametrize("options", [{}, {"amsgrad": True, "foreach": False}])
def test_the_run_is_the_same_with_and_without(options):
    plain, draws = train(*make(**options))
    model, optimizer = make(**options)
    with lost_updates(optimizer, every=3) as found:
        watched, again = train(model, optimizer)
    assert all(map(torch.equal, plain, watched))
    assert torch.equal(draws, again)
    assert len(found.steps) == 2  # the first and the fourth of four
    assert list(found.steps[0].parameters) == ["0.0", "0.1", "0.2", "0.3"]
    train(model, optimizer, 1)
    assert len(found.steps) == 2


def test_weights_that_are_stored_low_show_what_they_lose():
    model, optimizer = make(torch.bfloat16)
    bias = dict(model.named_parameters())["2.bias"]
    with torch.no_grad():
        bias.fill_(64.0)
    with lost_updates(optimizer, model=model) as found:
        train(model, optimizer)
    counts = found.total.parameters["2.bias"]
    assert (counts.format, counts.lost, counts.updates) == ("bfloat16", 8, 8)
    assert found.total.parameters["0.weight"].share < 1
    assert torch.equal(bias, torch.full((2,), 64.0, dtype=torch.bfloat16))


def test_a_closure_is_called_once():
    model, optimizer = make()
    calls = []

    def closure():
        calls.append(0)
        optimizer.zero_grad()
        loss = model(torch.ones(1, 8)).sum()
        loss.backward()
        return loss

    with lost_updates(optimizer) as found:
        optimizer.step(closure)
        optimizer.step(closure=closure)
    assert len(calls) == 2
    assert found.total.total.updates > 80


def test_mistakes_are_said():
    model, optimizer = make()
    with pytest.raises(ArgumentError, match="every=0; want 1 or more"):
        lost_updates(optimizer, every=0)
    with pytest.raises(OptimizerError, match="none of the parameters of model=Linear"):
        lost_updates(optimizer, model=nn.Linear(2, 2))
    with pytest.raises(UnsupportedError, match="LBFGS runs the model within its step"):
        lost_updates(torch.optim.LBFGS(model.parameters()))


def test_random_numbers_go_on_as_before():
    class Noisy(torch.optim.SGD):
        def step(self, closure=None):
            torch.rand(3)
            return super().step(closure)

    def drawn(*, watched):
        torch.manual_seed(0)
        weight = nn.Parameter(torch.ones(2))
        weight.grad = torch.ones(2)
        optimizer = Noisy([weight], lr=RATE)
        if watched:
            lost_updates(optimizer)
        optimizer.step()
        return torch.rand(2).tolist()

    assert drawn(watched=True) == drawn(watched=False)
