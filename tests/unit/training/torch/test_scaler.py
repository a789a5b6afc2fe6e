"""The loss scale: torch.amp.GradScaler's calls, scales and state, and what is added."""

import copy
import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch import nn

import amprewrite
from amprewrite.errors import (
    AmpWarning,
    LossScaleError,
    OptimizerError,
    UnsupportedError,
)
from amprewrite.training.torch import GradScaler
from amprewrite.training.torch.scaler import LOOK_EVERY, MIN_SCALE

INF, NAN = float("inf"), float("nan")


def scaler(**options: Any):
    return GradScaler("cpu", **options)


def setup(*, fused: bool = False, **options: Any):
    weight = nn.Parameter(torch.ones(3))
    options = {"lr": 0.25, "momentum": 0.5, **options}
    return weight, torch.optim.SGD([weight], fused=fused, **options)


def iterate(scaling: Any, weight: Any, optimizer: Any, factor: float):
    optimizer.zero_grad()
    loss = (weight * factor).sum()
    scaling.scale(loss).backward()
    scaling.step(optimizer)
    scaling.update()
    return loss


RULES = st.fixed_dictionaries(
    {
        "init_scale": st.floats(2.0**-10, 2.0**100, width=32),
        "growth_factor": st.floats(1.01, 8.0),
        "backoff_factor": st.floats(0.1, 0.99),
        "growth_interval": st.integers(1, 4),
    }
)
FACTORS = st.lists(st.sampled_from([1.0, 0.5, 3.0, 0.0, INF, -INF, NAN]), max_size=20)


@pytest.mark.parametrize("fused", [False, True])
@given(rule=RULES, factors=FACTORS)
@settings(max_examples=60, deadline=None)
def test_scales_weights_and_states_are_those_of_torch_at_every_step(
    *, fused: bool, rule: dict[str, Any], factors: list[float]
):
    theirs, ours = torch.amp.GradScaler("cpu", **rule), scaler(**rule, min_scale=0.0)
    momentum = 0.0 if fused else 0.5  # see the test of the first step of fused ones
    one, first = setup(fused=fused, momentum=momentum)
    two, second = setup(fused=fused, momentum=momentum)
    for factor in factors:
        iterate(theirs, one, first, factor)
        iterate(ours, two, second, factor)
        assert ours.get_scale() == theirs.get_scale()
        assert ours.state_dict() == theirs.state_dict()
        assert torch.equal(one, two)


@given(rule=RULES, factors=FACTORS, fused=st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_step_that_is_not_finite_changes_nothing_but_the_scale(
    *, rule: dict[str, Any], factors: list[float], fused: bool
):
    ours = scaler(**rule, min_scale=0.0)
    weight, optimizer = setup(fused=fused)
    iterate(ours, weight, optimizer, 0.0)
    for factor in factors:
        before = weight.detach().clone(), copy.deepcopy(optimizer.state_dict())
        scale = ours.get_scale()
        iterate(ours, weight, optimizer, factor)
        if not torch.isfinite(torch.tensor(factor)):
            assert torch.equal(weight, before[0])
            momentum = optimizer.state[weight]["momentum_buffer"]
            assert torch.equal(momentum, before[1]["state"][0]["momentum_buffer"])
            assert ours.get_scale() < scale


@pytest.mark.parametrize("direction", ["from torch", "to torch"])
def test_states_are_interchangeable_with_those_of_torch(direction: str):
    rule = {"init_scale": 64.0, "growth_factor": 3.0, "growth_interval": 2}
    pair = torch.amp.GradScaler("cpu", **rule), scaler(**rule)
    source, target = pair if direction == "from torch" else pair[::-1]
    weight, optimizer = setup()
    for factor in (1.0, INF, 1.0):
        iterate(source, weight, optimizer, factor)
    used = type(target)("cpu")
    iterate(used, *setup(), 1.0)
    for fresh in (type(target)("cpu"), used):
        fresh.load_state_dict(source.state_dict())
        assert fresh.state_dict() == source.state_dict()
        iterate(fresh, *setup(), 1.0)
        assert fresh.get_scale() == 32.0 * 3


def test_the_loss_itself_is_left_alone_and_gradients_are_unscaled():
    ours, (weight, optimizer) = scaler(init_scale=8.0), setup(momentum=0.0)
    assert iterate(ours, weight, optimizer, 2.0).item() == 6.0
    assert weight.grad is not None
    assert weight.grad.tolist() == [2.0] * 3
    assert weight.tolist() == [0.5] * 3


def test_nests_of_losses_are_scaled():
    ours, one = scaler(init_scale=4.0), torch.ones(())
    outer = ours.scale([one, (one * 2, one * 3)])
    assert isinstance(outer[1], tuple)
    assert [outer[0].item(), *(t.item() for t in outer[1])] == [4.0, 8.0, 12.0]
    assert [t.item() for t in ours.scale(iter([one]))] == [4.0]
    with pytest.raises(ValueError, match="cannot scale a int"):
        ours.scale([one, 3])


def test_a_disabled_scaler_passes_everything_on(monkeypatch: pytest.MonkeyPatch):
    """Nothing is read from the device: no host waits for it."""
    ours, (weight, optimizer) = scaler(enabled=False), setup(momentum=0.0)
    monkeypatch.setattr(torch.Tensor, "item", None)
    loss = weight.sum()
    assert ours.scale(loss) is loss
    loss.backward()
    ours.unscale_(optimizer)
    ours.step(optimizer)
    ours.update()
    assert torch.equal(weight, torch.full((3,), 0.75))
    assert (ours.get_scale(), ours.state_dict(), ours.is_enabled()) == (1.0, {}, False)
    ours.load_state_dict({})
    ours.step(optimizer, lambda: 3.0)


def test_without_cuda_a_scaler_for_cuda_is_disabled_as_that_of_torch(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.warns(AmpWarning, match="cuda, which is not available"):
        ours = GradScaler()
    assert not ours.is_enabled()


@pytest.mark.parametrize(
    "rule",
    [{"growth_factor": 1.0}, {"backoff_factor": 1.0}, {"growth_interval": 0}],
)
def test_numbers_that_cannot_scale_are_refused(rule: dict[str, Any]):
    with pytest.raises(ValueError, match="cannot scale a loss"):
        scaler(**rule)


def test_factors_can_be_read_and_set():
    ours = scaler()
    ours.set_growth_factor(3.0)
    ours.set_backoff_factor(0.25)
    ours.set_growth_interval(7)
    assert ours.get_growth_factor() == 3.0
    assert ours.get_backoff_factor() == 0.25
    assert ours.get_growth_interval() == 7
    with pytest.raises(ValueError, match="growth > 1"):
        ours.set_growth_factor(0.5)


@pytest.mark.parametrize("new", [32.0, torch.tensor([32.0])])
def test_a_new_scale_may_be_given(new: Any):
    ours, (weight, optimizer) = scaler(), setup()
    iterate(ours, weight, optimizer, 1.0)
    ours.update(new)
    assert ours.get_scale() == 32.0


def test_gradients_can_be_clipped_after_unscale():
    ours, (weight, optimizer) = scaler(), setup(momentum=0.0, lr=1.0)
    ours.scale((weight * 3.0).sum()).backward()
    ours.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_([weight], 1.0)
    ours.step(optimizer)
    assert norm.item() == pytest.approx(27**0.5)
    assert (1 - weight).norm().item() == pytest.approx(1.0, rel=1e-5)


def test_gradients_accumulate():
    ours, (weight, optimizer) = scaler(), setup(momentum=0.0, lr=1.0)
    for _ in range(4):
        ours.scale(weight.sum() / 4).backward()
    ours.step(optimizer)
    assert weight.tolist() == [0.0] * 3


@pytest.mark.parametrize("bad", [0, 1])
def test_of_several_optimizers_only_those_not_finite_are_skipped(bad: int):
    ours = scaler(init_scale=16.0)
    pairs = [setup(momentum=0.0), setup(momentum=0.0)]
    losses = [(w * (INF if i == bad else 1.0)).sum() for i, (w, _) in enumerate(pairs)]
    for number, loss in enumerate(losses):
        ours.scale(loss).backward(retain_graph=number == 0)
    for _, optimizer in pairs:
        ours.step(optimizer)
    ours.update()
    assert pairs[bad][0].tolist() == [1.0] * 3
    assert pairs[1 - bad][0].tolist() == [0.75] * 3
    assert ours.get_scale() == 8.0


def test_a_closure_is_called_once_and_may_be_skipped():
    ours, (weight, optimizer) = scaler(), setup(momentum=0.0)
    calls: list[float] = []

    def closure() -> Any:
        optimizer.zero_grad()
        loss = (weight * (INF if calls else 1.0)).sum()
        calls.append(loss.item())
        ours.scale(loss).backward()
        return loss

    assert ours.step(optimizer, closure) is not None
    ours.update()
    assert weight.tolist() == [0.75] * 3
    ours.step(optimizer, closure=closure)
    assert len(calls) == 2
    assert weight.tolist() == [0.75] * 3


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ("unscale_", "unscale_", r"unscale_\(\) after unscale_\(\)"),
        ("step", "unscale_", r"unscale_\(\) after step\(\)"),
        ("step", "step", r"step\(\) after step\(\)"),
    ],
)
def test_calls_out_of_order_are_refused(first: str, second: str, message: str):
    ours, (weight, optimizer) = scaler(), setup()
    ours.scale(weight.sum()).backward()
    getattr(ours, first)(optimizer)
    with pytest.raises(RuntimeError, match=message):
        getattr(ours, second)(optimizer)


@pytest.mark.parametrize("call", ["unscale_", "step", "update"])
def test_calls_before_scale_are_refused(call: str):
    _, optimizer = setup()
    args = () if call == "update" else (optimizer,)
    with pytest.raises(RuntimeError, match="before scale"):
        getattr(scaler(), call)(*args)


def test_an_update_before_a_step_is_refused():
    ours, (weight, _) = scaler(), setup()
    ours.scale(weight.sum()).backward()
    with pytest.raises(RuntimeError, match="nothing was looked at"):
        ours.update()


@pytest.mark.parametrize("fused", [False, True])
def test_an_optimizer_without_gradients_is_refused(*, fused: bool):
    ours, (weight, _) = scaler(), setup()
    ours.scale(weight.sum()).backward()
    with pytest.raises(RuntimeError, match="no parameter of it has one"):
        ours.step(setup(fused=fused)[1])


def test_the_old_way_of_fused_optimizers_is_refused():
    class Old(torch.optim.SGD):
        def step(self, closure: Any = None, grad_scaler: Any = None) -> Any:
            del closure, grad_scaler

    ours, (weight, _) = scaler(), setup()
    ours.scale(weight.sum()).backward()
    with pytest.raises(UnsupportedError, match=r"Old\.step takes a grad_scaler"):
        ours.step(Old([weight]))


def test_sparse_gradients_are_unscaled():
    table = nn.Embedding(5, 2, sparse=True)
    optimizer = torch.optim.SGD(table.parameters(), lr=1.0)
    ours, before = scaler(init_scale=4.0), table.weight.detach().clone()
    ours.scale(table(torch.tensor([1, 1, 3])).sum()).backward()
    ours.step(optimizer)
    moved = (before - table.weight).detach()
    assert moved[:, 0].tolist() == pytest.approx([0, 2, 0, 1, 0], abs=1e-6)


def test_at_the_least_scale_the_parameter_is_named():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ours = scaler(init_scale=4 * MIN_SCALE, model=model)
    x = torch.tensor([[1.0, NAN]])
    for _ in range(2):
        ours.scale(model(x).sum()).backward()
        ours.step(optimizer)
        ours.update()
    ours.scale(model(x).sum()).backward()
    with pytest.raises(LossScaleError, match=r"gradient of 0\.weight is not finite"):
        ours.step(optimizer)
    assert ours.get_scale() == MIN_SCALE


def test_a_fused_optimizer_is_looked_at_from_time_to_time():
    ours, (weight, optimizer) = scaler(init_scale=1.0, min_scale=1.0), setup(fused=True)
    for number in range(LOOK_EVERY - 1):
        iterate(ours, weight, optimizer, NAN if number else 0.0)
    with pytest.raises(LossScaleError, match="parameter 0 of group 0"):
        iterate(ours, weight, optimizer, NAN)
    assert weight.tolist() == [1.0] * 3


def test_a_fused_optimizer_that_skips_its_first_step_has_no_state():
    """torch's fused SGD keeps a momentum of uninitialised memory from it."""
    ours, (weight, optimizer) = scaler(init_scale=2 * MIN_SCALE), setup(fused=True)
    iterate(ours, weight, optimizer, INF)
    assert not optimizer.state
    iterate(ours, weight, optimizer, 1.0)
    assert weight.tolist() == [0.75] * 3
    with pytest.raises(LossScaleError):
        iterate(ours, *setup(fused=True), INF)


def test_a_fused_optimizer_can_be_unscaled_before():
    ours, (weight, optimizer) = scaler(), setup(fused=True, momentum=0.0)
    ours.scale((weight * 2.0).sum()).backward()
    ours.unscale_(optimizer)
    assert weight.grad is not None
    assert weight.grad.tolist() == [2.0] * 3
    ours.step(optimizer)
    assert weight.tolist() == [0.5] * 3


def test_an_optimizer_of_another_model_is_refused():
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    ours = scaler(model=model)
    ours.scale(model(torch.ones(1, 2)).sum()).backward()
    optimizer = torch.optim.SGD([*model.parameters(), *other.parameters()])
    with pytest.raises(OptimizerError, match="no parameter of the Linear given"):
        ours.step(optimizer)


def test_that_bfloat16_needs_no_scale_is_said_once():
    x = torch.randn(2, 4)
    model = amprewrite.convert(nn.Linear(4, 4).train(), args=(x,))
    optimizer = torch.optim.SGD(model.parameters())
    ours = scaler(model=model)
    with pytest.warns(AmpWarning, match="a loss scale is not needed"):
        scaled = ours.scale(model(x).sum())
    scaled.backward()
    before = model.get_parameter("weight").detach().clone()
    ours.step(optimizer)
    ours.update()
    ours.scale(model(x).sum()).backward()
    assert not torch.equal(before, model.get_parameter("weight"))


def test_for_float16_nothing_is_said():
    x = torch.randn(2, 4)
    model = amprewrite.convert(nn.Linear(4, 4).train(), "fp16", args=(x,))
    scaler(model=model).scale(model(x).sum()).backward()


def test_an_empty_state_is_refused():
    with pytest.raises(RuntimeError, match="as that of a disabled GradScaler"):
        scaler().load_state_dict({})


def test_a_scaler_is_pickled_without_its_model():
    ours, (weight, optimizer) = scaler(model=nn.Linear(2, 2)), setup()
    ours = scaler()
    iterate(ours, weight, optimizer, INF)
    again = pickle.loads(pickle.dumps(ours))
    assert again.state_dict() == ours.state_dict()
    iterate(again, weight, optimizer, 1.0)
    ours.scale(weight.sum()).backward()
    ours.unscale_(optimizer)
    with pytest.raises(RuntimeError, match=r"after update\(\)"):
        pickle.dumps(ours)
