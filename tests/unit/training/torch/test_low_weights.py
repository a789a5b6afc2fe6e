"""Training of weights that are stored in bfloat16."""

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from amprewrite.errors import UnsupportedError
from amprewrite.training.torch import LostUpdates, LowWeights
from amprewrite.training.torch.low_weights import MOMENTS, ROUNDINGS

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9, weight_decay=1e-3),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3),
    "adam_fused": lambda p: torch.optim.Adam(p, lr=1e-3, fused=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-3),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=1e-3),
}


def setup(name: str = "adamw", rounding: Any = "stochastic", **options: Any):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).bfloat16()
    return model, LowWeights(OPTIMIZERS[name](model.parameters()), rounding, **options)


def train(model: nn.Module, optimizer: LowWeights, steps: int, seed: int = 1) -> None:
    draws = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        x = torch.randn(16, 4, generator=draws)
        optimizer.zero_grad()
        loss = (model(x.bfloat16()).float() - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()


def state_of(model: nn.Module):
    return [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_any_optimizer_steps_and_everything_stays_low(name: str, rounding: str):
    model, optimizer = setup(name, rounding)
    before, places = state_of(model), [p.data_ptr() for p in model.parameters()]
    train(model, optimizer, 20)
    for parameter, place in zip(model.parameters(), places, strict=True):
        assert parameter.dtype == torch.bfloat16
        assert parameter.grad is not None
        assert parameter.grad.dtype == torch.bfloat16
        assert parameter.data_ptr() == place
    pairs = list(zip(model.parameters(), before, strict=True))
    assert any(not torch.equal(parameter, old) for parameter, old in pairs)


@pytest.mark.parametrize("moments", MOMENTS)
def test_moments_are_stored_as_asked_and_counts_of_steps_are_not(moments: Any):
    model, optimizer = setup("adamw", moments=moments)
    train(model, optimizer, 2)
    wanted = torch.bfloat16 if moments == "low" else torch.float32
    for held in optimizer.optimizer.state.values():
        assert held["exp_avg"].dtype == held["exp_avg_sq"].dtype == wanted
        assert held["step"].dtype == torch.float32


def test_the_count_of_steps_of_a_scalar_weight_is_not_rounded():
    """It has the shape of its weight; in bfloat16 it would stop at 256."""
    weight = nn.Parameter(torch.ones((), dtype=torch.bfloat16))
    optimizer = LowWeights(torch.optim.AdamW([weight]), moments="low")
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    held = optimizer.optimizer.state[weight]
    assert held["exp_avg"].dtype == torch.bfloat16
    assert held["step"].dtype == torch.float32


def test_one_step_is_that_of_float32_rounded():
    model, optimizer = setup("adamw", "nearest")
    wide = copy.deepcopy(model).float()
    reference = OPTIMIZERS["adamw"](wide.parameters())
    for parameter, full in zip(model.parameters(), wide.parameters(), strict=True):
        gradient = torch.randn_like(parameter)
        parameter.grad, full.grad = gradient, gradient.float()
    optimizer.step()
    reference.step()
    for parameter, full in zip(model.parameters(), wide.parameters(), strict=True):
        assert torch.equal(parameter, full.bfloat16())


def test_float32_parameters_are_stepped_as_they_are():
    low = nn.Parameter(torch.ones(2).bfloat16())
    full = nn.Parameter(torch.ones(2))
    optimizer = LowWeights(torch.optim.SGD([low, full], lr=2.0**-20), "nearest")
    low.grad, full.grad = torch.ones_like(low), torch.ones_like(full)
    optimizer.step()
    assert (low == 1).all()
    assert (full == 1 - 2.0**-20).all()


@pytest.mark.parametrize(
    ("rounding", "share", "shortfall"),
    [("nearest", 1.0, 1.0), ("kahan", 0.0, 0.0)],
)
def test_lost_updates_are_counted(rounding: Any, share: float, shortfall: float):
    weight = nn.Parameter(torch.ones(100).bfloat16())
    optimizer = LowWeights(torch.optim.SGD([weight], lr=2.0**-12), rounding)
    assert optimizer.lost == LostUpdates(0, 0, 0.0)
    assert optimizer.lost.share == 0.0
    weight.grad = (torch.arange(100) >= 40).bfloat16()
    optimizer.step()
    assert optimizer.lost.updates == 60
    assert optimizer.lost.share == share
    assert optimizer.lost.shortfall == shortfall


def test_stochastic_rounding_applies_updates_on_average():
    weight = nn.Parameter(torch.ones(40_000).bfloat16())
    optimizer = LowWeights(torch.optim.SGD([weight], lr=2.0**-12))
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    # of 40 000 each steps by 2**-8 with probability 2**-4: 5 standard errors
    assert optimizer.lost.share == pytest.approx(15 / 16, abs=0.006)
    assert abs(optimizer.lost.shortfall) < 0.1
    assert set(weight.tolist()) == {1.0, 1 - 2.0**-8}


def test_a_residual_carries_a_sum_that_nearest_loses():
    ends = {}
    for rounding in ("nearest", "kahan"):
        weight = nn.Parameter(torch.ones(1).bfloat16())
        optimizer = LowWeights(torch.optim.SGD([weight], lr=2.0**-12), rounding)
        for _ in range(2**10):
            weight.grad = -torch.ones_like(weight)
            optimizer.step()
        ends[rounding] = weight.item()
    assert ends == {"nearest": 1.0, "kahan": 1.25}


@pytest.mark.parametrize("moments", MOMENTS)
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_a_run_goes_on_bit_by_bit(rounding: Any, moments: Any):
    model, optimizer = setup("adamw", rounding, moments=moments, seed=5)
    train(model, optimizer, 6)
    weights = copy.deepcopy(model.state_dict())
    state = copy.deepcopy(optimizer.state_dict())
    train(model, optimizer, 6, seed=2)
    twin, again = setup("adamw", rounding, moments=moments)
    twin.load_state_dict(weights)
    again.load_state_dict(state)
    train(twin, again, 6, seed=2)
    for one, two in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(one, two)


def test_a_state_can_be_saved(tmp_path: Any):
    model, optimizer = setup("adamw", "kahan")
    train(model, optimizer, 2)
    torch.save(optimizer.state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    setup("adamw", "kahan")[1].load_state_dict(state)


def test_a_state_of_another_rounding_is_refused():
    state = setup(rounding="kahan")[1].state_dict()
    with pytest.raises(UnsupportedError, match=r"\('kahan', 'full'\); this is \('sto"):
        setup()[1].load_state_dict(state)


def test_what_there_is_not_is_refused():
    model = nn.Linear(2, 2).bfloat16()
    optimizer = torch.optim.SGD(model.parameters())
    wrong: Any = "up"
    with pytest.raises(UnsupportedError, match="no 'up' for low weights; want nearest"):
        LowWeights(optimizer, wrong)
    with pytest.raises(UnsupportedError, match="no 'up' for low weights; want full"):
        LowWeights(optimizer, moments=wrong)
    with pytest.raises(UnsupportedError, match="LBFGS"):
        LowWeights(torch.optim.LBFGS(model.parameters()))


def test_a_closure_is_called_once_and_gives_the_loss():
    model, optimizer = setup()
    calls: list[int] = []

    def closure() -> float:
        calls.append(1)
        model(torch.ones(1, 4).bfloat16()).sum().backward()
        return 2.0

    assert optimizer.step(closure) == 2.0
    assert calls == [1]


def test_a_step_that_fails_leaves_the_weights_low():
    model, optimizer = setup("sgd")
    before = state_of(model)
    model(torch.ones(1, 4).bfloat16()).sum().backward()
    optimizer.param_groups[0]["lr"] = "much"
    with pytest.raises((TypeError, RuntimeError, ValueError)):
        optimizer.step()
    for parameter, old in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter, old)


def test_schedulers_take_the_optimizer_inside():
    model, optimizer = setup("sgd")
    schedule = torch.optim.lr_scheduler.StepLR(optimizer.optimizer, 1, gamma=0.1)
    train(model, optimizer, 1)
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(1e-4)
