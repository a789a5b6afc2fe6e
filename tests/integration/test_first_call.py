"""The first call for inference of a model that was converted without args."""

import copy
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn
from torch.func import functional_call, vmap

import amprewrite
from amprewrite.errors import AmpWarning, CaptureError, UnsupportedError
from amprewrite.frameworks.torch_fx.module.weight_copies import COPIES
from amprewrite.frameworks.torch_fx.plain.plain_class import STATE
from tests.torch_programs import Program, relative_error

LOW = torch.bfloat16
FULL = torch.float32
X = torch.linspace(-1, 1, 16).reshape(2, 8)


class Model(nn.Module):
    """Two layers, with what export cannot capture if it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(
        self, x: Tensor, *, branches: bool = False, scale: float = 1.0
    ) -> Tensor:
        h = self.a(x * scale).tanh()
        return h * 2 if branches and h.sum() > 9 else self.b(h)


@pytest.fixture
def model() -> Any:
    torch.compiler.reset()
    return Model().eval()


def served(converted: Any, *args: Any, **kwargs: Any) -> Any:
    with torch.no_grad():
        return converted(*args, **kwargs)


def dtypes(converted: Any) -> set[Any]:
    return {held.dtype for held in converted.state_dict().values()}


def test_it_is_exported_and_is_then_as_one_converted_with_args(model: Any) -> None:
    converted, known = amprewrite.convert(model), amprewrite.convert(model, args=(X,))
    assert dtypes(converted) == {FULL}
    assert torch.equal(served(converted, X), served(known, X))
    assert converted.plan.captured == known.plan.captured
    assert dtypes(converted) == {LOW}
    for made in (copy.deepcopy(converted), pickle.loads(pickle.dumps(converted))):
        assert torch.equal(served(made, X), served(known, X))
        assert dtypes(made) == {LOW}
    assert dtypes(amprewrite.original(converted)) == {FULL}
    other = {name: held * 2 for name, held in model.state_dict().items()}
    for made in (converted, known):
        made.load_state_dict(other)
    assert torch.equal(served(converted, X[:1]), served(known, X[:1]))
    converted(X).sum().backward()
    assert converted.a.weight.grad.dtype == LOW
    with pytest.raises(UnsupportedError, match="converted for inference in eval mode"):
        converted.train()


def test_other_calls_have_programs_with_the_same_weights(model: Any) -> None:
    converted = amprewrite.convert(model)
    served(converted, X)
    weight = converted.a.weight
    assert relative_error(served(converted, X[0]), served(model, X[0])) < 0.02
    found = served(converted, X, branches=True)
    assert relative_error(found, served(model, X, branches=True)) < 0.02
    assert [("export" in plan.captured) for plan in converted.plans][:2] == [True] * 2
    assert "dynamo" in converted.plan.captured
    assert converted.a.weight is weight
    assert weight.dtype == LOW


@pytest.mark.parametrize("first", [{}, {"scale": 0.5}])
def test_numbers_vary_in_one_program(model: Any, first: Any) -> None:
    converted = amprewrite.convert(model)
    served(converted, X, **first)
    served(converted, X, scale=0.25)
    served(converted, X, scale=0.75)
    known = len(converted.plans)
    for number in range(2, 6):
        found = served(converted, X, scale=1 / number)
        assert relative_error(found, served(model, X, scale=1 / number)) < 0.02
    assert len(converted.plans) == known


def test_a_program_of_dynamo_reads_the_low_weights_of_the_model(model: Any) -> None:
    converted = amprewrite.convert(model)
    served(converted, X)
    served(converted, X, scale=0.5)
    assert "dynamo" in converted.plan.captured
    low = converted.a.weight
    shared = [c.low for c in COPIES._known.values() if c.low.shape == low.shape]
    assert any(one is low for one in shared)
    for change in (changed, loaded):
        change(converted)
        plain = amprewrite.original(converted)
        for scale in (0.5, 0.25):
            found = served(converted, X, scale=scale)
            assert relative_error(found, served(plain, X, scale=scale)) < 0.02


def changed(converted: Any) -> None:
    with torch.no_grad():
        for weight in converted.parameters():
            weight.mul_(2)


def loaded(converted: Any) -> None:
    state = {n: held.float() * -1 for n, held in converted.state_dict().items()}
    converted.load_state_dict(state, assign=True)


def test_a_model_that_export_cannot_capture_keeps_full_weights(model: Any) -> None:
    converted = amprewrite.convert(model)
    found = served(converted, X, branches=True)
    assert relative_error(found, served(model, X, branches=True)) < 0.02
    assert "dynamo" in converted.plan.captured
    served(converted, X)
    assert dtypes(converted) == {FULL}
    assert not model.training
    assert converted.train().training


def test_a_call_that_may_want_gradients_keeps_full_weights(model: Any) -> None:
    converted = amprewrite.convert(model)
    converted(X).sum().backward()
    assert converted.a.weight.grad.dtype == FULL
    served(converted, X)
    assert dtypes(converted) == {FULL}
    assert converted.train().training


def test_a_frozen_model_is_exported_in_any_call(model: Any) -> None:
    converted = amprewrite.convert(model.requires_grad_(requires_grad=False))
    converted(X)
    assert dtypes(converted) == {LOW}


def test_a_model_that_was_trained_keeps_full_weights(model: Any) -> None:
    converted = amprewrite.convert(model)
    converted.train()
    converted.eval()
    served(converted, X)
    assert dtypes(converted) == {FULL}


def test_a_call_in_a_transform_keeps_full_weights(model: Any) -> None:
    converted = amprewrite.convert(model)
    weights = {name: held.detach() for name, held in model.named_parameters()}
    served(lambda: functional_call(converted, weights, (X,)))
    assert dtypes(converted) == {FULL}
    with pytest.warns(AmpWarning, match="transforms"):
        served(vmap(amprewrite.convert(model)), X)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_a_part_in_torchscript_keeps_full_weights() -> None:
    script = torch.jit.script(nn.Linear(8, 8))
    model = Program(lambda m, x: m.b(m.a(x)), a=script, b=nn.Linear(8, 8)).eval()
    converted = amprewrite.convert(model)
    with pytest.warns(AmpWarning, match="dynamo captured no graph"):
        found = served(converted, X)
    assert torch.equal(found, served(model, X))
    assert dtypes(converted) == {FULL}


def test_a_model_that_cannot_be_copied_again_keeps_full_weights(model: Any) -> None:
    converted = amprewrite.convert(model)
    vars(converted)[STATE].shared.refusal = "it cannot be copied"
    assert relative_error(served(converted, X), served(model, X)) < 0.02
    assert dtypes(converted) == {FULL}


def test_after_an_error_the_next_call_is_the_first(model: Any) -> None:
    converted = amprewrite.convert(model)
    with pytest.raises(CaptureError, match="fails on these arguments"):
        served(converted, torch.randn(2, 3))
    assert converted.train().training
    assert dtypes(converted.eval()) == {FULL}
