"""The callback alone; tests/integration/integrations/test_trainer.py runs a Trainer."""

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch import nn

import amprewrite
from amprewrite.errors import UnsupportedError
from amprewrite.integrations.transformers import PlanCallback


class Wrapper(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


def logs_of(model: Any, optimizer: Any = None) -> dict[str, Any]:
    """Return what the callback adds to the logs."""
    logs: dict[str, Any] = {}
    state: Any = SimpleNamespace(log_history=[{"loss": 1.0}])
    given: Any = None
    PlanCallback().on_log(
        given, state, given, model=model, logs=logs, optimizer=optimizer
    )
    assert state.log_history == [{"loss": 1.0, **logs}]
    return logs


def test_it_finds_the_converted_model_in_a_wrapper() -> None:
    x = torch.ones(2, 8)
    converted = amprewrite.convert(nn.Sequential(nn.Linear(8, 8), nn.Tanh()), args=(x,))
    ops = len(converted.plan.decisions)
    share = round(len(converted.plan.lowered) / ops, 4)
    for model in (converted, Wrapper(Wrapper(converted))):
        assert logs_of(model) == {"low_ops": share, "programs": 1}


def test_it_logs_the_loss_scale() -> None:
    optimizer = SimpleNamespace(scaler=SimpleNamespace(get_scale=lambda: 1024.0))
    model = amprewrite.convert(nn.Linear(8, 8), args=(torch.ones(2, 8),))
    assert logs_of(model, optimizer)["loss_scale"] == 1024.0


def test_nothing_is_logged_before_the_first_call() -> None:
    assert logs_of(amprewrite.convert(nn.Linear(8, 8))) == {}


def test_a_plain_model_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="is a plain Linear; want one that is"):
        logs_of(nn.Linear(8, 8))
