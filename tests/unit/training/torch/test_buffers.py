"""Buffers are put back where a step is skipped, and nowhere else."""

import copy
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from amprewrite.training.torch.step_state import Buffers


class Fixed(nn.BatchNorm1d):
    """A norm with a buffer that nothing writes to."""

    def __init__(self) -> None:
        super().__init__(4)
        self.register_buffer("table", torch.arange(6.0))


def made() -> tuple[Fixed, Buffers]:
    torch.manual_seed(0)
    model = Fixed().train()
    return model, Buffers(model)


def held(model: nn.Module) -> dict[str, Any]:
    return copy.deepcopy(dict(model.named_buffers()))


def same(model: nn.Module, before: dict[str, Any]) -> bool:
    return all(torch.equal(b, before[name]) for name, b in model.named_buffers())


class Clones(TorchDispatchMode):
    """Count of the copies that are made."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        del types
        self.count += func is torch.ops.aten.clone.default
        return func(*args, **(kwargs or {}))


def copies(model: nn.Module) -> int:
    """Return how many buffers are copied before a forward pass."""
    with Clones() as made:
        model(torch.randn(8, 4))
    return made.count


SKIPPED, MADE = torch.tensor(data=True), torch.tensor(data=False)


def test_a_skipped_step_changes_no_buffer() -> None:
    model, buffers = made()
    for _ in range(3):
        before = held(model)
        model(torch.randn(8, 4))
        model(torch.randn(8, 4))
        assert not same(model, before)
        buffers.settle(SKIPPED)
        assert same(model, before)
    assert int(model.get_buffer("num_batches_tracked")) == 0


def test_a_step_that_was_made_keeps_them() -> None:
    model, buffers = made()
    model(torch.randn(8, 4))
    after = held(model)
    buffers.settle(MADE)
    assert same(model, after)
    model(torch.randn(8, 4))
    buffers.settle(SKIPPED)
    assert same(model, after)


def test_what_is_loaded_between_steps_stays() -> None:
    model, buffers = made()
    model(torch.randn(8, 4))
    buffers.settle(MADE)
    state = {**model.state_dict(), "running_mean": torch.full((4,), 7.0)}
    model.load_state_dict(state)
    model(torch.randn(8, 4))
    buffers.settle(SKIPPED)
    assert bool((model.get_buffer("running_mean") == 7).all())


def test_only_what_changes_is_copied_after_the_first_step() -> None:
    model, buffers = made()
    assert copies(model) == 4
    buffers.settle(MADE)
    assert copies(model) == 3
    buffers.settle(MADE)
    model.get_buffer("table").add_(1)
    assert copies(model) == 4


def test_evaluation_is_not_watched() -> None:
    model, buffers = made()
    assert copies(model.eval()) == 0
    buffers.settle(SKIPPED)


def test_a_model_that_is_watched_can_be_pickled_and_copied() -> None:
    model, _ = made()
    model(torch.randn(8, 4))
    again = pickle.loads(pickle.dumps(model))
    again(torch.randn(8, 4))
    copy.deepcopy(model)(torch.randn(8, 4))


def test_a_traced_forward_copies_its_buffers():
    torch.compiler.reset()
    model, buffers = made()
    run: Any = torch.compile(model, backend="eager", fullgraph=True)
    for _ in range(3):
        before = held(model)
        run(torch.randn(8, 4))
        assert not same(model, before)
        buffers.settle(SKIPPED)
        assert same(model, before)
    run(torch.randn(8, 4))
    buffers.settle(MADE)
    assert int(model.get_buffer("num_batches_tracked")) == 1
