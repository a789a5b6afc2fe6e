"""Linear layers with delayed scales: state in buffers."""

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.torch_fx.rewrite.fp8_operators import QUANTISE
from amprewrite.training.torch import (
    DelayedLinear,
    DelayedRule,
    delay_scales,
    saturated,
)

E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"


def layer():
    torch.manual_seed(0)
    return nn.Linear(6, 5).train(), torch.randn(2, 3, 6)


def by_hand(plain, x):
    """A layer with current scaling."""
    made = nn.functional.linear(
        *(QUANTISE(t, E4M3, "", "current") for t in (x, plain.weight))
    )
    return QUANTISE(made, "", E5M2, "current") + plain.bias


def test_stationary_numbers_are_those_of_current_scaling():
    plain, x = layer()
    model: Any = delay_scales(plain)
    assert isinstance(model, DelayedLinear)
    for _ in range(3):
        plain.zero_grad()
        model.zero_grad()
        y, z = model(x), by_hand(plain, x)
        (y**2).sum().backward()
        (z**2).sum().backward()
        torch.testing.assert_close(y, z, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(model.weight.grad, plain.weight.grad)
    assert (model.of_gradient.amaxes > 0).sum() == 3
    assert saturated(model) == {}


def test_a_jump_is_saturated_and_reported():
    plain, x = layer()
    model: Any = delay_scales(nn.Sequential(plain), DelayedRule(4))
    model(x)
    y = model(x * 1e4)
    assert y.abs().max() < 100 * model(x).abs().max()
    assert saturated(model) == {"0.of_input": 36}
    assert model[0].of_input.amaxes[1] == x.abs().max() * 1e4
    torch.testing.assert_close(model(x * 1e4), by_hand(plain, x * 1e4))


def test_eval_freezes_the_state():
    plain, x = layer()
    model: Any = delay_scales(plain)
    model(x)
    before = copy.deepcopy(model.state_dict())
    model.eval()(x * 1e4)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


def test_the_state_round_trips():
    plain, x = layer()
    model: Any = delay_scales(plain)
    model(x * 8)
    other: Any = delay_scales(plain)
    other.load_state_dict(model.state_dict())
    assert {"weight", "bias", "of_input.amaxes"} < set(model.state_dict())
    assert torch.equal(other(x), model(x))
    assert not torch.equal(delay_scales(plain)(x / 3e3), other(x / 3e3))


def test_a_layer_in_two_places_stays_one():
    plain, _ = layer()
    square = nn.Linear(5, 5)
    model: Any = delay_scales(nn.Sequential(plain, square, square))
    assert model[1] is model[2]
    assert type(plain) is nn.Linear


def test_what_cannot_be_is_refused():
    with pytest.raises(UnsupportedError, match=r"ReLU has no nn\.Linear"):
        delay_scales(nn.ReLU())
    plain, x = layer()
    fast = torch.compile(delay_scales(plain), backend="eager", fullgraph=True)
    with pytest.raises(Exception, match="cannot be captured"):
        fast(x)
