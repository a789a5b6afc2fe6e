"""Models that are captured again, after a change that they do not notice."""

import copy
import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn

import amprewrite
from amprewrite.errors import NotCapturedError, UnsupportedError
from tests.torch_programs import relative_error

X = torch.linspace(-1, 1, 8).reshape(2, 4)
SHARED: Any = SimpleNamespace(gain=1.0, table=[1.0])
GAIN = 1.0


class Model(nn.Module):
    """Reads a constant of its class, a global variable and objects elsewhere."""

    factor = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        gain = GAIN * self.factor * SHARED.gain * SHARED.table[0]
        return self.inner(x) * gain


def set_global() -> None:
    globals()["GAIN"] = 3.0


CHANGES: dict[str, Callable[[], Any]] = {
    "a global variable": set_global,
    "a constant of a class": lambda: setattr(Model, "factor", 3.0),
    "an object elsewhere": lambda: setattr(SHARED, "gain", 3.0),
    "a list elsewhere": lambda: SHARED.table.__setitem__(0, 3.0),
}


@pytest.fixture(autouse=True)
def _as_before() -> Any:
    yield
    globals()["GAIN"] = Model.factor = SHARED.gain = SHARED.table[0] = 1.0


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("options", [{"args": (X,)}, {"training": True, "args": (X,)}])
def test_what_lies_elsewhere_is_read_by_the_next_capture(
    name: str, options: Any
) -> None:
    model = Model().eval()
    converted: Any = amprewrite.convert(model, **options)
    before = model(X)
    CHANGES[name]()
    assert relative_error(converted(X), before) < 0.02, "it is not noticed"
    converted.recapture(args=(X,))
    assert len(converted.plans) == 1
    assert relative_error(converted(X), model(X)) < 0.02
    assert relative_error(model(X), 3 * before) < 1e-6


@pytest.mark.parametrize("options", [{}, {"training": True}, {"compile": True}])
def test_a_model_converted_without_args_is_captured_at_its_next_call(
    options: Any,
) -> None:
    model = Model().eval()
    converted: Any = amprewrite.convert(model, **options)
    with torch.no_grad():
        converted(X)
        set_global()
        converted.recapture()
        with pytest.raises(NotCapturedError):
            converted.plan  # noqa: B018  # it raises
        assert relative_error(converted(X), model(X)) < 0.02
    assert len(converted.plans) == 1


def test_parts_are_captured_again_too() -> None:
    class Part(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x @ torch.eye(4) * GAIN

    model = nn.Sequential(Part()).eval()
    converted: Any = amprewrite.convert(model, args=(X,))
    converted[0](X)
    set_global()
    converted.recapture(args=(X,))
    assert relative_error(converted[0](X), model(X)) < 0.02


def test_weights_stay_as_they_are() -> None:
    model = Model().eval()
    converted: Any = amprewrite.convert(model, args=(X,))
    before, state = converted(X), copy.deepcopy(converted.state_dict())
    parameters = list(converted.parameters())
    converted.recapture(args=(X,))
    assert all(map(lambda a, b: a is b, converted.parameters(), parameters))
    assert all(torch.equal(converted.state_dict()[name], state[name]) for name in state)
    assert torch.equal(converted(X), before)


def test_a_model_that_was_converted_with_args_needs_them() -> None:
    converted: Any = amprewrite.convert(Model().eval(), args=(X,))
    with pytest.raises(UnsupportedError, match=r"call recapture\(args=\.\.\., kwargs="):
        converted.recapture()
    converted.recapture(kwargs={"x": X})
    assert len(converted.plans) == 1


def test_a_loaded_model_cannot_be_captured_again() -> None:
    converted = amprewrite.convert(Model().eval(), args=(X,))
    loaded = pickle.loads(pickle.dumps(converted))  # our own bytes
    with pytest.raises(UnsupportedError, match="cannot capture another; load the"):
        loaded.recapture(args=(X,))


def test_a_method_of_that_name_is_the_models() -> None:
    class Recapturing(Model):
        def recapture(self) -> str:
            return "the model's"

    converted: Any = amprewrite.convert(Recapturing().eval(), args=(X,))
    assert converted.recapture() == "the model's"
