"""Training a converted model is training under torch.autocast, step by step."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.nn import functional as F  # noqa: N812  # torch's own name

import amprewrite
from tests.torch_programs import LOW, Program

STEPS = 5
LOSSES_AGREE = 0.01
"""Relative difference of the losses: a few roundings, and what steps make of them."""

ROUNDINGS = 4 * 2.0**-8
"""A few roundings to bfloat16, relative."""


def transformer() -> tuple[nn.Module, dict[str, Any]]:
    """Return a classifier with dropout and a batch with labels."""
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=32,
    )
    model = transformers.BertForSequenceClassification(config)
    batch = {
        "input_ids": torch.randint(1, 50, (8, 12)),
        "attention_mask": torch.ones(8, 12, dtype=torch.long),
        "labels": torch.randint(0, 2, (8,)),
    }
    return model.train(), batch


def convolutions() -> tuple[nn.Module, dict[str, Any]]:
    """Return a classifier with batch norm and dropout, and a batch with labels."""

    def forward(m: Any, image: Any, labels: Any) -> Any:
        return {"loss": F.cross_entropy(m.body(image), labels)}

    body = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.Conv2d(8, 16, 3, stride=2),
        nn.BatchNorm2d(16),
        nn.GELU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(64, 4),
    )
    batch = {"image": torch.randn(16, 3, 12, 12), "labels": torch.randint(0, 4, (16,))}
    return Program(forward, body=body).train(), batch


MODELS = {"transformer": transformer, "convolutions": convolutions}


def train(model: Any, run: Callable[..., Any], batch: dict[str, Any]) -> list[float]:
    """Return the losses of some AdamW steps on ``model``, computed by ``run``."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses: list[float] = []
    for step in range(STEPS):
        torch.manual_seed(step)
        loss = run(**batch)["loss"]
        assert loss.dtype == torch.float32
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def autocast(model: Any) -> Callable[..., Any]:
    def run(**batch: Any) -> Any:
        with torch.autocast("cpu", LOW):
            return model(**batch)

    return run


def converted(model: Any, batch: dict[str, Any], *, at_once: bool) -> Any:
    return amprewrite.convert(model, kwargs=batch if at_once else None)


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_losses_agree_with_those_under_autocast(name: str, *, at_once: bool) -> None:
    model, batch = MODELS[name]()
    other = copy.deepcopy(model)
    theirs = train(other, autocast(other), batch)
    program = converted(model, batch, at_once=at_once)
    ours = train(model, program, batch)
    assert program.plan.lowered
    assert ours == pytest.approx(theirs, rel=LOSSES_AGREE)
    assert ours[-1] < ours[0]


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_full_and_on_the_original_parameters(
    name: str, *, at_once: bool
) -> None:
    model, batch = MODELS[name]()
    program = converted(model, batch, at_once=at_once)
    program(**batch)["loss"].backward()
    ours = dict(program.named_parameters())
    for path, parameter in model.named_parameters():
        assert ours[path] is parameter
        assert parameter.dtype == torch.float32
        assert parameter.grad is not None, path
        assert parameter.grad.dtype == torch.float32


@pytest.mark.parametrize("at_once", [True, False])
def test_batch_statistics_are_those_under_autocast(*, at_once: bool) -> None:
    """Without steps: the bias before a batch norm has a gradient of noise alone."""
    model, batch = convolutions()
    other = copy.deepcopy(model)
    program = converted(model, batch, at_once=at_once)
    for _ in range(STEPS):
        autocast(other)(**batch)
        program(**batch)
    for (path, ours), theirs in zip(
        model.named_buffers(), other.buffers(), strict=True
    ):
        assert ours.dtype == theirs.dtype
        difference = float((ours - theirs).float().norm())
        assert difference <= ROUNDINGS * float(theirs.float().norm()), path


@pytest.mark.parametrize("at_once", [True, False])
def test_dropout_masks_are_those_of_the_model(*, at_once: bool) -> None:
    def forward(m: Any, x: Any) -> Any:
        return m.drop(m.a(x)), F.dropout2d(x[None, None], 0.5, m.training)

    model = Program(forward, a=nn.Linear(16, 16), drop=nn.Dropout(0.5)).train()
    x = torch.randn(8, 16)
    program = amprewrite.convert(model, args=(x,) if at_once else None)
    program(x)
    torch.manual_seed(1)
    ours = program(x)
    torch.manual_seed(1)
    theirs = model(x)
    for one, two in zip(ours, theirs, strict=True):
        assert torch.equal(one == 0, two == 0)


def test_weights_are_cast_as_they_are_used() -> None:
    """The gradients of several uses then add up in full precision."""
    model: Any = Program(lambda m, x: m.a(m.a(x)), a=nn.Linear(16, 16)).train()
    program = amprewrite.convert(model, args=(torch.randn(4, 16),))
    assert program.plan.storage == ()
    weights = [cast for cast in program.casts if cast.is_weight]
    assert weights
    assert not any(cast.folded for cast in weights)


def test_a_model_in_train_mode_may_be_converted_for_inference() -> None:
    model: Any = Program(lambda m, x: m.a(x), a=nn.Linear(16, 16)).train()
    program = amprewrite.convert(model, args=(torch.randn(4, 16),), training=False)
    assert program.get_parameter("a.weight").dtype == LOW
    assert model.a.weight.dtype == torch.float32


def test_a_model_in_eval_mode_may_be_converted_for_training() -> None:
    model: Any = Program(lambda m, x: m.a(x), a=nn.Linear(16, 16)).eval()
    program = amprewrite.convert(model, args=(torch.randn(4, 16),), training=True)
    program(torch.randn(4, 16)).sum().backward()
    assert program.get_parameter("a.weight") is model.a.weight
    assert model.a.weight.grad.dtype == torch.float32
