"""Recover the plain model of a converted one, with its current weights."""

import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.fx import symbolic_trace

import amprewrite
from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.torch_fx.derived.original import keep_program, original
from amprewrite.frameworks.torch_fx.module.converted_module import ConvertedModule

X = torch.linspace(-1, 1, 8).reshape(2, 4)


def network() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)).eval()


@pytest.fixture(scope="module")
def made() -> Any:
    return amprewrite.convert(network(), args=(X,))


@pytest.fixture(scope="module")
def program() -> Any:
    """A converted graph module."""
    return amprewrite.convert(symbolic_trace(network()), args=(X,))


def test_of_a_converted_model_it_is_of_the_models_class(made: Any) -> None:
    found = original(made)
    assert type(found) is nn.Sequential
    assert torch.equal(found[0].weight, made[0].weight.float())
    assert found[1].weight is not made[1].weight


def test_for_training_it_is_the_model_itself_in_the_mode_of_now() -> None:
    model = network()
    trained: Any = amprewrite.convert(model, args=(X,), training=True)
    assert original(trained) is model
    trained.train()
    assert original(trained).training
    trained[0].weight = nn.Parameter(torch.zeros(4, 4))
    found = original(trained)
    assert found is not model
    assert found[0].weight is trained[0].weight
    assert original(trained) is found


class Counting(nn.Module):
    """Multiplies by a flag, and counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.flag, self.count = nn.Linear(4, 4), 1, 0

    def forward(self, x: Any) -> Any:
        self.count += 1
        return self.layer(x) * self.flag


@pytest.mark.parametrize("args", [None, (X,)], ids=["lazily", "args"])
def test_for_training_it_has_the_attributes_of_now(args: Any) -> None:
    """A second program runs a copy of the model, which writes to the copy."""
    model = Counting().train()
    converted: Any = amprewrite.convert(model, "off", args=args)
    converted(X)
    converted.flag = 2
    converted(X)
    assert original(converted) is model
    assert (model.flag, model.count, converted.count) == (2, 2, 2)
    assert torch.equal(model(X), converted(X))


def test_others_are_returned_as_they_are() -> None:
    model = network()
    assert original(model) is model
    function = len
    assert original(function) is function


def test_of_a_graph_module_it_is_one_with_the_weights_of_now(program: Any) -> None:
    assert isinstance(program, ConvertedModule)
    with torch.no_grad():
        program.get_parameter("1.bias").fill_(3.0)
    found = original(program)
    assert isinstance(found, torch.fx.GraphModule)
    assert {p.dtype for p in found.parameters()} == {torch.float32}
    assert torch.equal(found.get_parameter("1.bias"), torch.full((4,), 3.0))
    assert found.get_parameter("1.bias") is not program.get_parameter("1.bias")
    low = program.get_parameter("0.weight")
    assert low.dtype == torch.bfloat16
    assert torch.equal(found.get_parameter("0.weight"), low.float())


def test_a_program_for_inference_keeps_no_values_of_the_graph_module(
    program: Any,
) -> None:
    kept = vars(program)["_origin"].model
    assert {p.device.type for p in kept.parameters()} == {"meta"}


def test_for_training_it_is_the_graph_module_itself() -> None:
    graph = symbolic_trace(network())
    found: Any = amprewrite.convert(graph, args=(X,), training=True)
    assert original(found) is graph


def test_a_loaded_program_has_no_graph_module(program: Any) -> None:
    with pytest.raises(UnsupportedError, match=r"loaded from a pickle.*load_state_dic"):
        original(pickle.loads(pickle.dumps(program)))


def test_why_there_is_no_copy_is_said_when_it_is_asked_for(program: Any) -> None:
    class Stuck(nn.Linear):
        def __deepcopy__(self, memo: object) -> Any:
            raise RuntimeError("no copies of this")

    kept = vars(program)["_origin"]
    try:
        keep_program(program, Stuck(4, 4), shared=False)
        with pytest.raises(UnsupportedError, match="Stuck cannot be copied"):
            original(program)
    finally:
        vars(program)["_origin"] = kept


def test_parts_and_wrappers_are_refused(made: Any, program: Any) -> None:
    for part in (made[0], program.get_submodule("0")):
        with pytest.raises(UnsupportedError, match=r"take the part of original\("):
            original(part)
    for inner in (made, program):
        with pytest.raises(
            UnsupportedError, match=r"this Sequential holds a .*, 1; cal"
        ):
            original(nn.Sequential(nn.ReLU(), inner))
