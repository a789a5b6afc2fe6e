"""A release of torch that a watcher hears nothing of is told, and captured safely."""

from collections.abc import Generator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest import mock

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import amprewrite
from amprewrite.errors import AmpWarning, UnsupportedError
from amprewrite.frameworks.torch_fx.compat import settings, watchers


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        del ctx
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        del ctx
        return -grads[0]


class Own(nn.Linear):
    def forward(self, input: Any) -> Any:  # noqa: A002  # torch's own name
        return Reverse.apply(super().forward(input))


class Checkpointed(nn.Linear):
    def forward(self, input: Any) -> Any:  # noqa: A002  # torch's own name
        return checkpoint(super().forward, input, use_reentrant=False)


@pytest.fixture(autouse=True)
def _tried_anew() -> Generator[None]:
    watchers.failed.cache_clear()
    yield
    watchers.failed.cache_clear()


def deaf(*_: object) -> Any:
    """A watcher of names that torch does not use any more."""
    return nullcontext()


@contextmanager
def moved() -> Generator[None]:
    """A release that looks up another attribute, and enters its hooks in C."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(watchers, "LOOKED_UP", "moved"))
        stack.enter_context(mock.patch.object(watchers, "noting_saved_tensors", deaf))
        yield


def test_all_is_heard_with_this_release(recwarn: pytest.WarningsRecorder) -> None:
    assert watchers.failed(torch.__version__) == ()
    assert not recwarn.list


def test_trials_change_no_random_state() -> None:
    before = torch.get_rng_state()
    watchers.failed(torch.__version__)
    assert torch.equal(torch.get_rng_state(), before)


def test_trials_run_on_the_cpu() -> None:
    with torch.device("meta"):
        assert watchers.failed(torch.__version__) == ()


@pytest.mark.parametrize("grad_mode", [torch.no_grad, torch.inference_mode])
def test_modes_around_do_not_reach_a_trial(grad_mode: Any) -> None:
    with FlopCounterMode(display=False) as mode, grad_mode():
        assert watchers.failed(torch.__version__) == ()
    assert mode.get_total_flops() == 0


@pytest.mark.parametrize(
    ("owner", "watcher", "features"),
    [
        (watchers, "noting_functions", ["custom autograd", "checkpoints"]),
        (watchers, "noting_saved_tensors", ["checkpoints"]),
        (settings, "distinct_casts", ["casts of float32"]),
        (settings, "slow_attention_path", ["nn.MultiheadAttention"]),
        (settings, "inference_without_gradients", ["torch.inference_mode"]),
    ],
)
def test_each_watcher_that_hears_nothing_is_told_once(
    owner: Any, watcher: str, features: list[str]
) -> None:
    with (
        mock.patch.object(owner, watcher, deaf),
        pytest.warns(AmpWarning, match="does not notice") as told,
    ):
        failed = watchers.failed("9.9")
    assert watchers.failed("9.9") is failed
    assert len(told) == len(failed) == len(features)
    for warning, trial, feature in zip(told, failed, features, strict=True):
        assert feature in trial.feature
        text = str(warning.message)
        assert f"{trial.feature} with torch 9.9: {trial.instead}" in text


def test_a_trial_that_torch_refuses_has_failed() -> None:
    refusing = watchers.Trial("things", lambda: 1 / 0 > 0, "nothing is done")
    with (
        mock.patch.object(watchers, "TRIALS", (refusing,)),
        pytest.warns(AmpWarning, match="does not notice things with torch"),
    ):
        assert watchers.failed("9.9") == (refusing,)


@pytest.mark.parametrize(("kind", "sign"), [(Own, -1), (Checkpointed, 1)])
def test_a_model_in_training_is_captured_by_dynamo(kind: Any, sign: int) -> None:
    model, x = kind(4, 4).train(), torch.randn(2, 4)
    with (
        moved(),
        pytest.warns(AmpWarning, match=r"are captured by torch\.compile"),
    ):
        converted = amprewrite.convert(model, args=(x,))
    for run in (model, converted):
        model.zero_grad()
        run(x).sum().backward()
        assert (model.weight.grad - sign * x.sum(0)).abs().max() < 0.05
    captured = converted.plan.captured
    assert "does not tell a capture of custom autograd functions and" in captured


def test_a_request_for_one_graph_is_refused_then() -> None:
    x = torch.randn(2, 4)
    with (
        moved(),
        pytest.warns(AmpWarning, match="does not notice"),
        pytest.raises(UnsupportedError, match="does not tell a capture of custom"),
    ):
        amprewrite.convert(Own(4, 4).train(), args=(x,), tolerance=0.1)


def test_a_model_in_eval_mode_is_exported_all_the_same() -> None:
    with moved(), pytest.warns(AmpWarning, match="does not notice"):
        converted = amprewrite.convert(Own(4, 4).eval(), args=(torch.ones(2, 4),))
    assert converted.plan.captured == "captured by torch.export"
