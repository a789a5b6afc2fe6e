"""All of a model is put back after a run that is not the user's own."""

import random
import signal
from typing import Any

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

from torch import nn

from amprewrite.frameworks.torch_fx.untouched.undisturbed import (
    Untouched,
    undisturbed,
)


class Model(nn.Module):
    """Writes to all that it has."""

    def __init__(self) -> None:
        super().__init__()
        self.p, self.count, self.list = nn.Parameter(torch.ones(2)), 0, [1]
        self.register_buffer("b", torch.ones(2))
        self.teacher = {"t": nn.Linear(2, 2)}

    def forward(self, stop: Any = None) -> None:
        self.p.data.mul_(2)
        self.p.data = self.p.data + 1
        self.get_buffer("b").add_(1)
        self.count += 1
        self.list.append(2)
        self.teacher["t"].weight.data.zero_()
        other: Any = Other
        self.__class__ = other
        random.random(), np.random.rand(), torch.rand(1)
        if stop is not None:
            raise stop


class Other(Model):
    """Another class."""


def state(model: Any) -> Any:
    tensors = [*model.parameters(), *model.buffers(), model.teacher["t"].weight]
    drawn = torch.get_rng_state().numpy().tobytes()
    numbers = random.getstate(), np.random.get_state()[2], drawn
    return (
        type(model),
        [(id(t), t.data_ptr(), t.tolist()) for t in tensors],
        (model.count, id(model.list), [*model.list]),
        numbers,
    )


@pytest.mark.parametrize("stop", [None, RuntimeError, KeyboardInterrupt])
def test_a_run_leaves_nothing_also_if_it_stops(stop: Any) -> None:
    model = Model()
    before = state(model)
    try:
        with undisturbed(model):
            model(stop)
    except (RuntimeError, KeyboardInterrupt):
        pass
    assert state(model) == before


def test_several_models_are_put_back() -> None:
    models = Model(), Model(), Model()
    before = [*map(state, models)]
    with undisturbed(*models):
        for model in models:
            model()
    assert [*map(state, models)] == before


def test_unwatched_runs_have_memory_put_back_that_was_seen_before() -> None:
    model = Model()
    before = state(model)
    with undisturbed(model, watched=False) as undone:
        with undone.writes.watching():
            model()
        model()
    assert state(model) == before


def test_tensors_that_are_no_parameters_are_named() -> None:
    model: Any = Model()
    model.plain = torch.ones(2)
    outside = torch.ones(2)
    for write, name in ((model.plain, "self.plain"), (outside, "outside of the model")):
        with undisturbed(model) as undone:
            write.add_(1)
            assert [n for n in undone.written() if n.endswith(name)] == undone.written()
    with undisturbed(model) as undone:
        assert undone.written() == []


def test_an_interrupt_waits_until_all_is_put_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = Model()
    before = state(model)
    put_back = Untouched(model)
    model()
    first = put_back.writes.put_back

    def interrupted() -> None:
        signal.raise_signal(signal.SIGINT)
        first()

    monkeypatch.setattr(put_back.writes, "put_back", interrupted)
    # A shell has jobs in the background ignore interrupts.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            put_back.restore()
        assert state(model)[2:] == before[2:]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, handler)


def test_a_gradient_that_was_recorded_before_can_be_computed() -> None:
    model: Any = nn.Linear(2, 2)
    loss = (model.weight * model.weight).sum()  # needs the weight as it is now
    with undisturbed(model), torch.no_grad():
        model.weight.add_(1)
    loss.backward()
    assert torch.equal(model.weight.grad, 2 * model.weight)
