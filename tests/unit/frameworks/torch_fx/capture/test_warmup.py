"""The first run of a model leaves no trace."""

import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from amprewrite.errors import CaptureError
from amprewrite.frameworks.torch_fx.capture.warmup import warm_up
from amprewrite.frameworks.torch_fx.untouched.undisturbed import undisturbed
from tests.torch_programs import Program


def test_buffers_and_the_random_state_are_given_back() -> None:
    model: Any = nn.BatchNorm1d(8).train()
    state = torch.get_rng_state()
    with undisturbed(model):
        model(torch.randn(4, 8))
        assert int(model.num_batches_tracked) == 1
    assert int(model.num_batches_tracked) == 0
    assert torch.equal(model.running_mean, torch.zeros(8))
    assert torch.equal(torch.get_rng_state(), state)


def test_they_are_given_back_after_an_error_too() -> None:
    model: Any = nn.BatchNorm1d(8).train()
    state = torch.get_rng_state()

    def fail() -> None:
        with undisturbed(model):
            model(torch.randn(4, 8))
            msg = "stop"
            raise RuntimeError(msg)

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert int(model.num_batches_tracked) == 0
    assert torch.equal(torch.get_rng_state(), state)


def test_the_arguments_of_a_first_run_are_copies() -> None:
    model = Program(lambda _, x, y: x.add_(y))
    given, held = torch.zeros(3), torch.ones(3)
    warm_up(model, (given,), {"y": held})
    assert torch.equal(given, torch.zeros(3))


def test_a_model_that_fails_is_told_apart_from_a_capture_that_fails() -> None:
    with pytest.raises(CaptureError) as caught:
        warm_up(nn.Linear(8, 8), (torch.randn(4, 9),), {})
    message = str(caught.value)
    assert message.startswith("Linear itself fails on these arguments at ")
    assert message.endswith("pass arguments that the model runs with")


class TooWideError(ValueError):
    """An exception of a model."""

    def __init__(self, message: str, *, width: int) -> None:
        super().__init__(message)
        self.width = width


class FinalError(ValueError):
    """An exception from which no class can be derived."""

    def __init_subclass__(cls) -> None:
        raise TypeError


@pytest.mark.parametrize(
    "error",
    [
        TooWideError("too wide", width=9),
        KeyError("a"),
        OSError(2, "gone"),
        StopIteration(),
        UnicodeDecodeError("utf-8", b"a", 0, 1, "bad"),
        torch.OutOfMemoryError("full"),
        FinalError("no"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_exception_of_the_model_keeps_its_class(error: Exception) -> None:
    def forward(_: Any) -> Any:
        raise error

    with pytest.raises(CaptureError, match=r"^Program itself fails on") as caught:
        warm_up(Program(forward), (), {})
    assert caught.value.__cause__ is error
    final = isinstance(error, FinalError)
    assert isinstance(caught.value, type(error)) is not final
    assert type(caught.value).__name__ == "CaptureError"
    if isinstance(caught.value, TooWideError):
        assert caught.value.width == 9
    loaded = pickle.loads(pickle.dumps(caught.value))  # our own bytes
    assert type(loaded) is CaptureError
    assert str(loaded) == str(caught.value)


def test_no_gradient_is_recorded_by_a_first_run() -> None:
    def forward(m: Any, x: Any) -> Any:
        assert not m.a(x).requires_grad

    warm_up(Program(forward, a=nn.Linear(8, 8)), (torch.randn(4, 8),), {})
