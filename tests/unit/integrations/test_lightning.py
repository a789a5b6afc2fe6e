"""The arguments and the state of the plugin for Lightning."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
lightning = pytest.importorskip("lightning")

from torch import nn

import amprewrite
from amprewrite.errors import PolicyError, UnsupportedError
from amprewrite.integrations.lightning import AmpRewritePrecision
from amprewrite.training.torch import GradScaler


def test_the_policy_decides_about_a_loss_scale() -> None:
    bf16, fp16 = AmpRewritePrecision(), AmpRewritePrecision(torch.float16)
    assert (bf16.precision, fp16.precision) == ("bf16-mixed", "16-mixed")
    assert bf16.state_dict() == {}
    state = fp16.state_dict()
    fp16.load_state_dict({**state, "scale": 8.0})
    assert fp16.state_dict()["scale"] == 8
    fp16.load_state_dict({})  # of a run in bfloat16
    assert fp16.state_dict()["scale"] == 8
    own = GradScaler("cpu", init_scale=4.0)
    assert AmpRewritePrecision("fp16", scaler=own).state_dict()["scale"] == 4


def test_mistakes_are_errors() -> None:
    with pytest.raises(UnsupportedError, match=r"scaler is given with policy bf16, .*"):
        AmpRewritePrecision("bf16", scaler=GradScaler("cpu"))
    with pytest.raises(PolicyError, match="bf61"):
        AmpRewritePrecision("bf61")


def test_the_module_is_converted_until_the_teardown() -> None:
    plugin = AmpRewritePrecision()
    model: Any = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    assert plugin.convert_module(model) is model
    assert plugin.plans == ()
    model(torch.randn(2, 4))
    assert len(plugin.plans) == 1
    plugin.teardown()
    assert type(model) is nn.Sequential
    assert len(plugin.plans) == 1


def test_a_converted_module_stays_as_it_is() -> None:
    plugin = AmpRewritePrecision()
    converted = amprewrite.convert(nn.Linear(2, 2))
    kind = type(converted)
    plugin.convert_module(converted)
    plugin.teardown()
    assert type(converted) is kind
