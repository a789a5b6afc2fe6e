"""A converted model in the training loop of accelerate."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
accelerate = pytest.importorskip("accelerate")

from accelerate.state import AcceleratorState, GradientState
from torch import nn

import amprewrite
from amprewrite.errors import AmpWarning

STEPS = 24
X = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
Y = (X.sum(1) > 0).long()


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """Leave no state behind: all accelerators of a process share it."""
    yield
    AcceleratorState._reset_state(True)
    GradientState._reset_state()


def network() -> Any:
    torch.manual_seed(0)
    parts = nn.Linear(8, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 2)
    return nn.Sequential(*parts).train()


def trained(model: Any, precision: str = "no") -> tuple[Any, Any, list[float]]:
    """Return the accelerator, the prepared model and the losses of a loop."""
    AcceleratorState._reset_state(True)
    runner = accelerate.Accelerator(
        cpu=True, mixed_precision=precision, gradient_accumulation_steps=2
    )
    data = torch.utils.data.TensorDataset(X, Y)
    model, optimizer, loader = runner.prepare(
        model,
        torch.optim.AdamW(model.parameters(), lr=1e-2),
        torch.utils.data.DataLoader(data, batch_size=16),
    )
    losses: list[float] = []
    while len(losses) < STEPS:
        for x, y in loader:
            with runner.accumulate(model):
                loss = nn.functional.cross_entropy(model(x), y)
                runner.backward(loss)
                runner.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
    return runner, model, losses


def lowered(converted: Any) -> set[str]:
    """Return the dtypes in which the plan computes linear layers."""
    found = (d for d in converted.plan.decisions if d.canonical == "linear")
    return {decision.operands[0] for decision in found}


def test_it_trains_as_the_model_does() -> None:
    converted: Any = amprewrite.convert(network())
    runner, prepared, found = trained(converted)
    *_, expected = trained(network())
    assert found[-1] < 0.3 * found[0]
    assert found != expected
    assert found == pytest.approx(expected, rel=0.05)
    assert lowered(converted) == {"bfloat16"}
    assert runner.unwrap_model(prepared) is converted


def test_autocast_does_nothing_to_a_converted_model() -> None:
    *_, expected = trained(amprewrite.convert(network()))
    converted: Any = amprewrite.convert(network())
    runner, prepared, found = trained(converted, "bf16")
    assert found == expected
    assert lowered(converted) == {"bfloat16"}
    assert prepared(X).dtype == torch.float32
    plain = runner.unwrap_model(prepared, keep_fp32_wrapper=False)
    assert plain is converted
    assert lowered(converted) == {"bfloat16"}
    assert torch.equal(plain(X), prepared(X))


def test_a_model_under_its_autocast_says_that_nothing_is_left_to_lower() -> None:
    runner = accelerate.Accelerator(cpu=True, mixed_precision="bf16")
    prepared = runner.prepare(network())
    under: Any = amprewrite.convert(prepared)
    with pytest.warns(AmpWarning, match="nothing was lowered.*inside an autocast"):
        under(X)
    free = runner.unwrap_model(prepared, keep_fp32_wrapper=False)
    converted: Any = amprewrite.convert(free)
    converted(X)
    assert lowered(converted) == {"bfloat16"}


def test_its_state_is_saved_and_loaded(tmp_path: Path) -> None:
    model = network()
    runner, prepared, _ = trained(amprewrite.convert(model))
    expected = prepared(X).detach()
    runner.save_state(str(tmp_path))
    runner.save_model(prepared, str(tmp_path / "model"))
    with torch.no_grad():
        for held in model.parameters():
            held.zero_()
    assert not torch.equal(prepared(X), expected)
    runner.load_state(str(tmp_path))
    assert torch.equal(prepared(X), expected)
    fresh = network()
    accelerate.load_checkpoint_in_model(fresh, str(tmp_path / "model"))
    for name, held in fresh.state_dict().items():
        assert torch.equal(held, model.state_dict()[name])
