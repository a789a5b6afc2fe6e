"""That float16 without a loss scale is noticed, and that a scale is."""

import copy
import pickle
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.nn import functional as F  # noqa: N812  # torch's own name

import amprewrite
from amprewrite.errors import AmpWarning, NotCapturedError
from amprewrite.frameworks.torch_fx.module.loss_scale_warning import (
    SMALLEST,
    unscaled,
    watch,
)
from tests.torch_programs import Program

MESSAGE = "training in float16 without a loss scale"


@pytest.mark.parametrize(
    ("gradient", "expected"),
    [
        ([SMALLEST, SMALLEST * 4], "the gradient of an output adds up to 0.00031"),
        ([6.5, -1.5], "the gradient of an output adds up to 8, that of a mean loss"),
        ([6.5, -1.625], ""),
        ([SMALLEST / 2] * 2, "100% of the gradient of an output is in numbers below"),
        ([1.0] + [SMALLEST / 2] * 3000, "8% of the gradient"),
        ([1.0] + [SMALLEST / 2] * 300, "the gradient of an output adds up to 1"),
        ([16.0] + [SMALLEST / 2] * 300, ""),
        ([0.0, 0.0], ""),
        ([float("nan"), 1e-9], ""),
        ([float("inf"), 1e-9], ""),
        (1.0, "the gradient of the returned loss is 1"),
        (-0.25, "the gradient of the returned loss is 0.25"),
        (1024.0, ""),
    ],
)
def test_a_gradient_shows_whether_the_loss_is_scaled(gradient: Any, expected: str):
    found = unscaled(torch.tensor(gradient))
    assert found.startswith(expected) if expected else found == ""


def classifier():
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 1000)).train()
    return model, torch.randn(128, 8), torch.randint(0, 1000, (128,))


def warned(run: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    return [str(w.message) for w in caught if MESSAGE in str(w.message)]


@pytest.mark.parametrize("at_once", [True, False])
def test_a_unit_scaled_model_needs_none(*, at_once: bool):
    model, x, labels = classifier()
    scaled = amprewrite.unit_scale(model, (x,))
    program = amprewrite.convert(scaled, "fp16", args=(x,) if at_once else None)
    assert not warned(lambda: F.cross_entropy(program(x), labels).backward())


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("scale", [1.0, 2.0**16])
def test_training_is_watched_once(scale: float, *, at_once: bool):
    model, x, labels = classifier()
    program = amprewrite.convert(model, "fp16", args=(x,) if at_once else None)

    def run() -> None:
        (F.cross_entropy(program(x), labels) * scale).backward()

    with torch.no_grad():
        assert not warned(lambda: program(x))
    found = warned(run)
    assert len(found) == (scale == 1.0)
    assert all("below 6e-05; gradients below" in line for line in found)
    assert not warned(run)


@pytest.mark.parametrize("scale", [1.0, 2.0**10])
def test_a_small_model_is_watched_too(scale: float):
    """None of its gradients is small, but all those behind them may be."""
    torch.manual_seed(0)
    model, x = nn.Linear(8, 4).train(), torch.randn(16, 8)
    program = amprewrite.convert(model, "fp16", args=(x,))
    found = warned((F.mse_loss(program(x), x[:, :4]) * scale).backward)
    assert len(found) == (scale == 1.0)


@pytest.mark.parametrize("scale", [1.0, 2.0**16])
def test_a_returned_loss_is_watched(scale: float):
    def forward(m: Any, x: Any, labels: Any) -> Any:
        logits = m.body(x)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}

    body, x, labels = classifier()
    model = Program(forward, body=body).train()
    program = amprewrite.convert(model, "fp16", args=(x, labels))
    found = warned((program(x, labels)["loss"] * scale).backward)
    assert len(found) == (scale == 1.0)


@pytest.mark.parametrize(
    ("policy", "training"), [("bf16", True), ("fp16", False), ("off", True)]
)
def test_nothing_else_is_watched(policy: str, *, training: bool):
    model, x, _ = classifier()
    model.train(training)
    program = amprewrite.convert(model, policy, args=(x,), training=training)
    assert not program._forward_hooks


def test_a_watched_module_can_be_copied_and_pickled():
    model, x, labels = classifier()
    program = amprewrite.convert(model, "fp16", args=(x,))
    for twin in (copy.deepcopy(program), pickle.loads(pickle.dumps(program))):
        assert warned(lambda t=twin: F.cross_entropy(t(x), labels).backward())


def test_a_watched_module_can_be_compiled():
    model, x, labels = classifier()
    watch(model)
    fast = torch.compile(model, backend="eager", fullgraph=True)
    assert not warned(lambda: F.cross_entropy(fast(x), labels).backward())
    with pytest.warns(AmpWarning, match=MESSAGE):
        F.cross_entropy(model(x), labels).backward()


class Scale(nn.Module):
    def forward(self, x: Any) -> Any:
        return x * 1


def test_a_gradient_that_cannot_be_read_is_left_alone():
    model, x = Scale(), torch.ones(3, requires_grad=True)
    watch(model)
    sparse = torch.sparse_coo_tensor([[1]], [1.0], (3,), check_invariants=True)
    torch.autograd.grad(model(x), x, torch.eye(3), is_grads_batched=True)
    assert not warned(lambda: model(x).backward(sparse))
    with pytest.warns(AmpWarning, match=MESSAGE):
        model(x).backward(torch.ones(3))


def test_a_module_that_captured_nothing_is_not_watched():
    class Bare(Scale):
        @property
        def plan(self) -> Any:
            raise NotCapturedError("nothing was captured")

    model, x = Bare(), torch.ones(3, requires_grad=True)
    watch(model)
    assert not warned(lambda: model(x).backward(torch.ones(3)))
