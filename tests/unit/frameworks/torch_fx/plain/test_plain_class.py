"""The plain class of a class that was derived from it for converted models."""

import copy
from collections import OrderedDict
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.utils import parametrize

import amprewrite
from amprewrite.frameworks.torch_fx.derived.classes import (
    ConvertedModel,
    ConvertedPart,
    derived_class,
)
from amprewrite.frameworks.torch_fx.plain.plain_class import (
    STATE,
    follow_assigned,
    made_anew,
    plain_class,
    plain_object,
    plain_state,
    program_class,
)
from amprewrite.frameworks.torch_fx.plain.watched import Watched
from amprewrite.frameworks.torch_fx.programs.structure import Watch
from tests.torch_programs import relative_error

MODEL: Any = derived_class(nn.Linear, ConvertedModel, frozenset())
PART: Any = derived_class(nn.Linear, ConvertedPart, frozenset())


def sharded(kind: Any) -> Any:
    """Return the class that ``fully_shard`` gives to a module of class ``kind``."""
    return type(f"FSDP{kind.__name__}", (FSDPModule, kind), {})


def parametrized(kind: Any) -> Any:
    """Return the class of a module of class ``kind`` with a parametrization."""
    module = nn.Linear(2, 2)
    module.__class__ = kind
    parametrize.register_parametrization(module, "weight", nn.Identity())
    return type(module)


@pytest.mark.parametrize("kind", [MODEL, PART, sharded(PART), sharded(MODEL)])
def test_the_class_of_the_model_is_found(kind: Any) -> None:
    assert kind is not nn.Linear
    assert plain_class(kind) is nn.Linear


@pytest.mark.parametrize("kind", [nn.Linear, sharded(nn.Linear), int])
def test_a_class_that_was_not_derived_stays(kind: Any) -> None:
    assert plain_class(kind) is kind


def test_a_parametrized_class_is_made_of_the_models_class_instead() -> None:
    kind = parametrized(PART)
    found = plain_class(kind)
    assert issubclass(kind, ConvertedPart)
    assert not issubclass(found, ConvertedPart)
    assert found.__name__ == kind.__name__
    assert found.__bases__ == (nn.Linear,)
    assert isinstance(vars(found)["weight"], property)


def test_programs_are_looked_up_by_parametrized_classes_but_not_sharded_ones() -> None:
    assert program_class(PART) is program_class(sharded(PART)) is nn.Linear
    kind = parametrized(PART)
    assert program_class(kind) is kind
    assert program_class(nn.Linear) is nn.Linear


def test_plain_state_has_plain_dicts_and_no_programs() -> None:
    part = nn.Sequential(nn.Linear(2, 2))
    part.__class__ = derived_class(nn.Sequential, ConvertedPart, frozenset())
    for name in ("_modules", "_forward_hooks"):
        vars(part)[name] = Watched(vars(part)[name], Watch())
    vars(part)[STATE] = vars(part)["_compiled_call_impl"] = object()
    state = plain_state(part)
    assert state.keys() == vars(nn.Sequential()).keys()
    assert type(state["_modules"]) is type(vars(nn.Sequential())["_modules"])
    assert type(state["_forward_hooks"]) is OrderedDict
    assert state["_modules"] == {"0": part[0]}
    assert STATE in vars(part), "the part itself is not changed"


def test_plain_state_is_that_of_the_models_own_getstate() -> None:
    class Kept(nn.Module):
        def __getstate__(self) -> dict[str, Any]:
            return {**vars(self), "lock": None}

    part: Any = Kept()
    part.lock = object()
    part.__class__ = derived_class(Kept, ConvertedPart, frozenset())
    assert plain_state(part)["lock"] is None


def test_an_object_is_made_without_init() -> None:
    class Counted(nn.Module):
        def __init__(self) -> None:
            raise AssertionError

    assert type(plain_object(Counted)) is Counted


def test_programs_follow_what_a_checkpoint_assigned() -> None:
    class Programs:
        followed = 0

        def follow(self) -> None:
            self.followed += 1

    model, programs = nn.Linear(2, 2), Programs()
    follow_assigned(model, None)  # without programs
    vars(model)[STATE] = programs
    follow_assigned(model, None)
    assert programs.followed == 1


class Bound(nn.Module):
    """A module that binds a function to itself, and again in each copy."""

    def __init__(self) -> None:
        super().__init__()
        self.bind()

    def bind(self) -> None:
        self.call = lambda: self

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if k != "call"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.bind()


def test_attributes_that_a_copy_makes_anew() -> None:
    assert made_anew(Bound()) == {"call"}
    assert made_anew(nn.LSTM(2, 2)) == {"_flat_weight_refs"}


@pytest.mark.parametrize("layer", [nn.Linear(2, 2), nn.Conv1d(2, 2, 1), Bound()])
def test_a_parametrized_module_is_asked_as_its_own_class(layer: Any) -> None:
    """The state of the class that torch makes for it raises."""
    expected = made_anew(layer)
    if isinstance(layer, Bound):
        layer.weight = nn.Parameter(torch.ones(2, 2))
    made = nn.utils.parametrizations.weight_norm(layer)
    assert made_anew(made) == expected


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        norm = nn.utils.parametrizations.weight_norm
        self.layer = norm(nn.LSTM(8, 8), "weight_hh_l0")
        self.out = norm(nn.Linear(8, 8))

    def forward(self, x: Any) -> Any:
        return self.out(self.layer(x)[0])


@pytest.mark.parametrize("options", [{"args": (torch.ones(3, 8),)}, {}])
@pytest.mark.parametrize("training", [None, True])
def test_a_model_with_parametrized_parts_is_copied(options: Any, training: Any) -> None:
    """Asked for its state, a recurrent layer runs its parametrizations."""
    model, x = Recurrent().eval(), torch.linspace(-1, 1, 24).reshape(3, 8)
    made: Any = amprewrite.convert(model, training=training, **options)
    before = made(x)
    assert relative_error(before, model(x)) < 2e-2
    twin, part = copy.deepcopy(made), copy.deepcopy(made.out)
    assert STATE not in vars(part)
    assert plain_class(type(part)) is type(part)
    with torch.no_grad():
        made.layer.parametrizations.weight_hh_l0.original0.mul_(-2)
        made.out.parametrizations.weight.original0.mul_(2)
    assert torch.equal(twin(x), before)
    held = part.parametrizations.weight.original0
    assert torch.equal(held, twin.out.parametrizations.weight.original0)
    assert relative_error(made(x), amprewrite.original(made)(x)) < 2e-2
    assert relative_error(made(x), before) > 0.3


class Copied(nn.Linear):
    """A class that copies its objects itself."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        made = memo[id(self)] = object.__new__(type(self))
        made.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return made


def test_a_class_that_copies_its_objects_itself_is_asked() -> None:
    model, x = nn.Sequential(Copied(8, 8)).eval(), torch.ones(2, 8)
    made: Any = amprewrite.convert(model, args=(x,), training=True)
    part = copy.deepcopy(made[0])
    assert type(part) is Copied
    assert STATE not in vars(part)
    assert relative_error(part(x), model(x)) < 1e-2
