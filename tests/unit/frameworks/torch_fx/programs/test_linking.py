"""Programs that read the tensors of a converted model."""

import copy
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn

import amprewrite
from amprewrite.dispatch import planner
from amprewrite.errors import AmpWarning
from amprewrite.frameworks.base import Request
from amprewrite.frameworks.torch_fx.conversion import Conversion
from amprewrite.frameworks.torch_fx.module.low_marks import full_dtype
from amprewrite.frameworks.torch_fx.programs.linking import link, tensors_of
from amprewrite.frameworks.torch_fx.strategies.table import export_now
from tests.torch_programs import relative_error

LOW, FULL = torch.bfloat16, torch.float32
X = torch.linspace(-1, 1, 8).reshape(2, 4)


class Network(nn.Module):
    """Two layers with tied weights; one of them is read by itself if asked."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
        self.three, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)
        self.two.weight = self.one.weight

    def forward(self, x: Tensor, *, raw: bool = False) -> Any:
        if raw:
            return self.one.weight.exp(), self.three(x)
        return self.two(self.norm(self.one(x)))


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    return Network().eval()


def program_of(model: Any, *, training: bool = False, **kwargs: Any) -> Any:
    request = Request(planner("bf16"), (X,), kwargs, training=training)
    return export_now(Conversion(model, request))


@pytest.fixture(scope="module")
def captured(model: Any) -> Any:
    return program_of(model)


@pytest.fixture(scope="module")
def reads_raw(model: Any) -> Any:
    return program_of(model, raw=True)


def test_weights_are_stored_low_under_all_of_their_names(
    model: Any, captured: Any
) -> None:
    owner, program = copy.deepcopy(model), copy.deepcopy(captured)
    link(program, owner, (), owner)
    assert owner.one.weight.dtype == LOW
    assert owner.two.weight is owner.one.weight
    assert full_dtype(owner.one.weight) == FULL
    assert owner.norm.weight.dtype == FULL
    assert isinstance(owner.one.weight, nn.Parameter)
    assert relative_error(program(X), model(X)) < 0.02


def test_writes_to_the_model_are_read_by_the_program(model: Any, captured: Any) -> None:
    owner, program = copy.deepcopy(model), copy.deepcopy(captured)
    link(program, owner, (), owner)
    owner.two.bias = nn.Parameter(torch.full((4,), 100.0, dtype=owner.two.bias.dtype))
    with torch.no_grad():
        owner.one.weight.zero_()
    assert torch.equal(program(X), torch.full((2, 4), 100.0))


def test_a_weight_that_another_program_reads_is_copied_for_the_new_one(
    model: Any, captured: Any, reads_raw: Any
) -> None:
    owner = copy.deepcopy(model)
    first, second = copy.deepcopy(reads_raw), copy.deepcopy(captured)
    link(first, owner, (), owner)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of weights that it does not read: see below
        link(second, owner, (first,), owner)
    assert owner.one.weight.dtype == FULL, "the first program reads it as it is"
    assert torch.equal(first(X, raw=True)[0], model.one.weight.exp())
    assert relative_error(second(X), model(X)) < 0.02
    with torch.no_grad():
        owner.one.weight.mul_(2)
        model_twice = copy.deepcopy(model)
        model_twice.one.weight.mul_(2)
    assert relative_error(second(X), model_twice(X)) < 0.02, "its copy is renewed"


def test_weights_that_a_program_does_not_read_are_left_alone(
    model: Any, captured: Any, reads_raw: Any, recwarn: pytest.WarningsRecorder
) -> None:
    owner = copy.deepcopy(model)
    first, second = copy.deepcopy(reads_raw), copy.deepcopy(captured)
    link(first, owner, (), owner)
    link(second, owner, (first,), owner)
    assert not [w for w in recwarn if "reads three.weight" in str(w.message)]
    assert owner.two.bias.dtype == LOW, "the first program does not read it"
    names = [name for name, _ in second.rewritten.named_buffers()]
    assert not [name for name in names if "three" in name]


def test_a_low_weight_that_becomes_full_is_full_in_the_model(
    model: Any, captured: Any, reads_raw: Any
) -> None:
    """The program that stored it low may have been dropped."""
    owner = copy.deepcopy(model)
    first, second = copy.deepcopy(captured), copy.deepcopy(reads_raw)
    link(first, owner, (), owner)
    link(second, owner, (), owner)
    assert owner.one.weight.dtype == FULL
    assert full_dtype(owner.one.weight) == FULL
    assert owner.three.weight.dtype == LOW
    assert full_dtype(owner.three.weight) == FULL


def test_a_full_read_of_a_low_weight_is_rounded_and_says_so(
    model: Any, captured: Any, reads_raw: Any
) -> None:
    owner = copy.deepcopy(model)
    first, second = copy.deepcopy(captured), copy.deepcopy(reads_raw)
    link(first, owner, (), owner)
    with pytest.warns(AmpWarning, match=r"reads \w+\.weight in float32.*rounded value"):
        link(second, owner, (first,), owner)
    assert owner.one.weight.dtype == LOW
    assert any("rounded values" in line for line in second.plan.warnings)
    rounded = model.one.weight.to(LOW).to(FULL)
    assert torch.equal(second(X, raw=True)[0], rounded.exp())


def test_programs_of_the_same_dtypes_share_what_is_stored(
    model: Any, captured: Any
) -> None:
    owner = copy.deepcopy(model)
    first, second = copy.deepcopy(captured), copy.deepcopy(captured)
    link(first, owner, (), owner)
    low = owner.one.weight
    link(second, owner, (first,), owner)
    assert owner.one.weight is low
    assert second.one.weight is low
    assert not list(second.rewritten.buffers())


def test_recurrent_layers_keep_up_with_low_weights() -> None:
    torch.manual_seed(0)
    model = nn.LSTM(4, 4).eval()
    made: Any = amprewrite.convert(model, args=(X,))
    assert made.weight_ih_l0.dtype == made.weight_hh_l0.dtype
    flat = vars(made)["_flat_weights"]
    assert [id(w) for w in flat] == [
        id(getattr(made, name)) for name in vars(made)["_flat_weights_names"]
    ]
    assert relative_error(made(X)[0], model(X)[0]) < 0.02
    state = torch.ones(1, 4), torch.ones(1, 4)
    assert relative_error(made(X, state)[0], model(X, state)[0]) < 0.02
    assert len(made.plans) == 2


def test_tensors_of_a_program_are_found_by_the_models(
    model: Any, captured: Any
) -> None:
    found = tensors_of(captured, model)
    assert set(found) == {id(t) for t in (*model.parameters(), *model.buffers())}
    low = found[id(model.one.weight)]
    assert low.dtype == LOW
    assert full_dtype(low) == FULL
    assert low is captured.one.weight is captured.two.weight
