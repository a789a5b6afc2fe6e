"""Make a converted model: an instance of a class derived from the model's own."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import amprewrite
from amprewrite.dispatch import planner
from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.base import Request
from amprewrite.frameworks.torch_fx.compat import module_hooks
from amprewrite.frameworks.torch_fx.conversion import Conversion
from amprewrite.frameworks.torch_fx.derived.derive import derive
from amprewrite.frameworks.torch_fx.plain.plain_class import STATE, follow_assigned
from amprewrite.frameworks.torch_fx.programs import part_hooks
from amprewrite.frameworks.torch_fx.strategies.dynamo import dynamo
from amprewrite.frameworks.torch_fx.strategies.table import export_now
from tests.torch_programs import Program, relative_error

X = torch.linspace(-1, 1, 8).reshape(2, 4)


def network() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)).eval()


def conversion(model: Any, *, args: Any = (X,), training: bool = False) -> Conversion:
    return Conversion(model, Request(planner("bf16"), args, training=training))


no_capture: Any = None  # so none can be made


def derived(asked: Conversion) -> Any:
    program: Any = export_now(asked)
    return derive(asked, program, no_capture)


@pytest.mark.parametrize("training", [False, True])
def test_tensors_are_shared_for_training_alone(*, training: bool) -> None:
    model = network()
    made = derived(conversion(model, training=training))
    assert isinstance(made, nn.Sequential)
    assert made is not model
    assert type(model) is nn.Sequential
    assert (made[1].weight is model[1].weight) is training
    low = torch.float32 if training else torch.bfloat16
    assert made[0].weight.dtype == low
    state = vars(made)[STATE].shared
    assert (state.model is model) is training
    assert (state.trains, state.mode) == (training, None if training else False)
    assert relative_error(made(X), model(X)) < 0.02


def test_the_program_reads_the_very_dicts_of_the_model() -> None:
    made = derived(conversion(network()))
    program = vars(made)[STATE].latest()
    for path in ("0", "1"):
        ours, theirs = made.get_submodule(path), program.get_submodule(path)
        assert vars(ours)["_parameters"] is vars(theirs)["_parameters"]


def test_the_models_own_hooks_are_those_of_its_programs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(part_hooks, "is_users", lambda _: False)  # as a library's
    model = network()
    model.register_forward_hook(lambda _, __, y: y * 2)
    made = derived(conversion(model))
    assert not module_hooks.call_hooks(made)
    assert module_hooks.call_hooks(model)
    assert set(vars(made)[STATE].shared.hooks["_forward_hooks"]) == set(
        module_hooks.call_hooks(model)
    )
    assert relative_error(made(X), model(X)) < 0.02


def test_loads_that_assign_are_followed() -> None:
    made = derived(conversion(network()))
    assert follow_assigned in module_hooks.load_hooks(made).values()
    other = network()
    with torch.no_grad():
        other[0].weight.fill_(0.5)
    made.load_state_dict(other.state_dict(), assign=True)
    assert made[0].weight.dtype == torch.bfloat16
    assert relative_error(made(X), other(X)) < 0.02


@pytest.mark.parametrize("training", [False, True])
def test_without_a_program_it_is_captured_later(*, training: bool) -> None:
    model = network()
    asked = conversion(model, args=None, training=training)
    made: Any = derive(asked, None, no_capture)
    assert vars(made)[STATE].plans == ()
    assert (made[0].weight is model[0].weight) is training
    assert vars(made)[STATE].shared.mode is None


def test_what_dynamo_captures_shares_tensors_and_attributes() -> None:
    model: Any = Program(lambda m, x: m.a(x), a=nn.Linear(4, 4)).eval()
    model.losses = losses = [1.0]
    asked = conversion(model, args=None)
    lazy: Any = dynamo(asked, None)
    made: Any = derive(asked, lazy, no_capture)
    assert made.a.weight is lazy.model.a.weight
    assert made.a.weight is not model.a.weight
    assert made.losses is lazy.model.losses
    assert made.losses is not losses, "the module that runs is a copy"


@pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning")
def test_a_part_in_torchscript_has_no_plain_model() -> None:
    script = torch.jit.trace(nn.Linear(4, 4).eval(), (X,))
    model: Any = nn.Sequential(script, nn.Linear(4, 4)).eval()
    made = derived(conversion(model))
    assert relative_error(made(X), model(X)) < 0.02
    with pytest.raises(UnsupportedError, match="a part of the model is TorchScript"):
        vars(made)[STATE].shared.refuse_copy()
    trained = derived(conversion(model, training=True))
    vars(trained)[STATE].shared.refuse_copy()
    assert trained[0] is script


def test_a_function_around_a_part_is_a_reason_not_to_copy() -> None:
    model = network()
    part = model[0]
    model.taken = lambda x: part(x).relu()
    made = derived(conversion(model))
    with pytest.raises(UnsupportedError, match="taken of Sequential is a function"):
        vars(made)[STATE].shared.refuse_copy()


def test_a_model_that_cannot_be_copied_is_refused() -> None:
    class Stuck(nn.Linear):
        def __deepcopy__(self, memo: object) -> Any:
            raise RuntimeError("no copies of this")

    with pytest.raises(UnsupportedError, match="Stuck cannot be copied"):
        derived(conversion(Stuck(4, 4).eval()))


@pytest.mark.parametrize("args", [None, (X,)], ids=["lazily", "args"])
def test_a_model_in_training_keeps_its_dicts(args: Any) -> None:
    model: Any = nn.Sequential(nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4))
    model[1].register_buffer("absent", None)
    spaces = [vars(part) for part in model.train().modules()]
    before = [(space["_parameters"], space["_buffers"]) for space in spaces]
    converted = amprewrite.convert(model, "off", args=args)
    first = converted(X)
    for space, (parameters, buffers) in zip(spaces, before, strict=True):
        assert space["_parameters"] is parameters
        assert space["_buffers"] is buffers
    converted[0].bias = nn.Parameter(torch.ones(4))
    assert torch.equal(converted(X), amprewrite.original(converted)(X))
    assert not torch.equal(converted[0](X), first)
