"""Candidates of a model are timed side by side."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from amprewrite.frameworks.torch_fx.probes import tolerance as timing
from amprewrite.frameworks.torch_fx.probes.runner import Runner
from amprewrite.measure.runs import Call


@pytest.fixture(autouse=True)
def in_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "SECONDS", 0.01)


class Counting(nn.Module):
    """Counts its calls, draws random numbers, and works some times over."""

    def __init__(self, times: int = 1) -> None:
        super().__init__()
        self.linear, self.times, self.calls = nn.Linear(64, 64), times, 0
        gradients: list[bool] = []
        self.note: Any = gradients.append  # to a list that is not the model's
        self.seen: Any
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Any, cache: Any = None) -> Any:
        self.calls += 1
        self.note(torch.is_grad_enabled())
        self.seen.add_(1)
        if cache is not None:
            cache.append(x)
            assert len(cache) == 1  # each call has a cache of its own
        for _ in range(self.times):
            x = self.linear(x) + torch.rand(())
        return {"y": x, "n": torch.ones(1, dtype=torch.long)}


def runner(*args: Any) -> Runner:
    return Runner(Call(args or (torch.randn(256, 64),), {}), [])


def test_a_slower_model_takes_longer_and_nothing_is_left_behind() -> None:
    models = {"once": Counting(), "often": Counting(20)}
    on = runner()
    state = torch.get_rng_state()
    found = timing.seconds_of(models, on, training=False)
    assert found["often"] > found["once"] > 0
    assert torch.equal(torch.get_rng_state(), state)
    for model in models.values():
        assert len(model.note.__self__) >= 2
        assert model.calls == model.seen == 0
        assert not any(model.note.__self__)


def test_training_steps_have_gradients_and_leave_none() -> None:
    model = Counting()
    timing.seconds_of({"one": model}, runner(), training=True)
    assert all(model.note.__self__)
    assert model.linear.weight.grad is None


def test_arguments_that_may_grow_are_copied_for_each_call() -> None:
    class Cache:
        def __init__(self) -> None:
            self.held: list[Any] = []

        def append(self, x: Any) -> None:
            self.held.append(x)

        def __len__(self) -> int:
            return len(self.held)

    model, cache = Counting(), Cache()
    timing.seconds_of({"one": model}, runner(torch.randn(2, 64), cache), training=False)
    assert len(model.note.__self__) > 5
    assert len(cache) == 0
