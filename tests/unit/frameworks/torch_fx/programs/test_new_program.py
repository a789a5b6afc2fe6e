"""Capture one more program of a converted model."""

import copy
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn

import amprewrite
from amprewrite.errors import PlanMismatchError, UnsupportedError
from amprewrite.frameworks.torch_fx.conversion import Conversion
from amprewrite.frameworks.torch_fx.plain.plain_class import STATE
from amprewrite.frameworks.torch_fx.programs import part_hooks
from amprewrite.frameworks.torch_fx.programs.new_program import have_same_tensors
from tests.torch_programs import relative_error

X = torch.linspace(-1, 1, 8).reshape(2, 4)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4))
        self.sign = 1

    def forward(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
        return self.inner(x) * scale * self.sign


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    return Network().eval()


@pytest.fixture(scope="module")
def converted(model: Any) -> Any:
    return amprewrite.convert(model, args=(X,))


@pytest.fixture(scope="module")
def trained(model: Any) -> Any:
    return amprewrite.convert(model, args=(X,), training=True)


@pytest.fixture
def made(converted: Any) -> Any:
    return copy.deepcopy(converted)


class Noting:
    """Captures programs, and notes the conversions."""

    def __init__(self, capture: Any) -> None:
        self.capture, self.request = capture, capture.request
        self.conversions: list[Any] = []

    def __call__(self, conversion: Conversion, /) -> Any:
        self.conversions.append(conversion)
        return self.capture(conversion)


def noted(made: Any) -> list[Any]:
    """Return a list that gets the conversions of a model from now on."""
    shared = vars(made)[STATE].shared
    shared.capture = Noting(shared.capture)
    return shared.capture.conversions


def test_a_plain_model_is_captured_with_the_plan_of_the_others(made: Any) -> None:
    found = noted(made)
    x = torch.randn(5, 4)
    made(x)
    (conversion,) = found
    assert type(conversion.model) is Network
    assert {p.dtype for p in conversion.model.parameters()} == {torch.float32}
    assert (conversion.path, conversion.first) == ("", False)
    assert conversion.args[0] is x
    assert conversion.request.dynamic_shapes["x"] == {0: torch.export.Dim.AUTO}
    assert conversion.like == made.plans[0]


def test_a_part_is_captured_with_its_path_and_without_the_models_hooks(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_hooks, "is_users", lambda _: False)  # as a library's
    hooked = copy.deepcopy(model)
    hooked.register_forward_hook(lambda _, __, y: y + 1)
    made: Any = amprewrite.convert(hooked, args=(X,))
    found = noted(made)
    assert relative_error(made.inner(X), model.inner(X)) < 0.02
    assert relative_error(made(X, scale=2.0), hooked(X, scale=2.0)) < 0.02
    part, whole = found
    assert (part.path, whole.path) == ("inner", "")
    assert type(part.model) is nn.Sequential
    assert part.like is None
    assert not vars(part.model)["_forward_hooks"]
    assert len(vars(whole.model)["_forward_hooks"]) == 1


@pytest.mark.parametrize(
    ("args", "kwargs", "why"),
    [
        ((), {}, "missing a required argument: 'x'"),
        ((X, 2.0), {}, "too many positional arguments"),
        ((X,), {"y": 1}, "unexpected keyword argument 'y'"),
        ((X,), {"x": X}, "multiple values for argument 'x'"),
    ],
)
def test_wrong_arguments_are_refused_by_the_models_signature(
    made: Any, args: Any, kwargs: Any, why: str
) -> None:
    start = r"Network\.forward\(x: .*scale.*\) .* was called with a wrong argument: "
    with pytest.raises(TypeError, match=f"{start}.*{why}"):
        made(*args, **kwargs)
    assert len(made.plans) == 1


def test_a_pickled_model_runs_its_programs_alone(made: Any) -> None:
    loaded = pickle.loads(pickle.dumps(made))
    assert torch.equal(loaded(X), made(X))
    with pytest.raises(PlanMismatchError, match=r"shape"):
        loaded(torch.randn(5, 4))
    with pytest.raises(TypeError, match=r"scale"):
        loaded(X, scale=2.0)
    loaded.sign = -1
    with pytest.raises(UnsupportedError, match=r"pickled.*its structure is not that"):
        loaded(X)


def test_the_other_mode_is_refused_at_the_call_too(made: Any) -> None:
    made.training = True
    with pytest.raises(UnsupportedError, match="for inference in eval mode"):
        made(X)


def test_a_model_that_cannot_be_copied_is_not_captured_again(made: Any) -> None:
    vars(made)[STATE].shared.refusal = "for a reason"
    with pytest.raises(UnsupportedError, match=r"^for a reason$"):
        made(X, scale=2.0)


def test_for_training_the_model_itself_is_captured_where_it_cannot_be_copied(
    model: Any,
) -> None:
    model = copy.deepcopy(model)
    made: Any = amprewrite.convert(model, args=(X,), training=True)
    found = noted(made)
    vars(made)[STATE].shared.refusal = "for a reason"
    made.train()
    made(X)
    assert found[0].model is model
    assert model.training
    made.inner[0].bias = nn.Parameter(torch.ones(4))
    with pytest.raises(UnsupportedError, match="for a reason"):
        made(X, scale=3.0)
    with pytest.raises(UnsupportedError, match="for a reason"):
        made.inner(X)


def test_tensors_are_the_same_by_name_and_identity(model: Any, trained: Any) -> None:
    twin = copy.deepcopy(model)
    assert have_same_tensors(model, model)
    assert have_same_tensors(model, trained)
    assert not have_same_tensors(model, twin)
    twin.inner[0].weight = model.inner[0].weight
    assert not have_same_tensors(model, twin), "the biases differ"
    twin.inner[0].bias = model.inner[0].bias
    assert have_same_tensors(model, twin)
    twin.inner[0].register_buffer("more", torch.ones(1))
    assert not have_same_tensors(model, twin)
    twin.inner[0].__delattr__("more")
    twin.inner[0].bias = None
    assert not have_same_tensors(model, twin)
