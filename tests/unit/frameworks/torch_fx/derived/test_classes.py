"""Classes of converted models, derived from the models' own classes."""

import copy
import inspect
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn

import amprewrite
from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.torch_fx.derived.classes import (
    ConvertedModel,
    ConvertedPart,
    adopt_parts,
    derived_class,
    programs_of,
)
from amprewrite.frameworks.torch_fx.plain.plain_class import STATE
from amprewrite.frameworks.torch_fx.plain.watched import Watched

X = torch.linspace(-1, 1, 8).reshape(2, 4)
NONE: frozenset[str] = frozenset()


class Saves(nn.Module):
    """A model with a flag, and a method that saves it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.doubled = False

    def forward(self, x: Tensor) -> Tensor:
        """Return twice as much if asked."""
        x = self.norm(self.inner(x))
        return x * 2 if self.doubled else x

    def save_pretrained(self, *given: Any, **named: Any) -> Any:
        """Save it."""
        return self, given, named

    def extra_repr(self) -> str:
        return "of mine"


@pytest.fixture(scope="module")
def made() -> Any:
    torch.manual_seed(0)
    return amprewrite.convert(Saves().eval(), args=(X,))


def test_there_is_one_class_for_each_class_role_and_names_taken() -> None:
    found = derived_class(Saves, ConvertedModel, NONE)
    assert found is derived_class(Saves, ConvertedModel, NONE)
    others = {
        derived_class(Saves, ConvertedPart, NONE),
        derived_class(Saves, ConvertedModel, frozenset({"plan"})),
        derived_class(nn.Linear, ConvertedModel, NONE),
    }
    assert len(others) == 3
    assert found not in others


def test_a_class_reads_as_that_of_the_model() -> None:
    found = derived_class(Saves, ConvertedModel, NONE)
    assert found.__mro__[:2] == (found, ConvertedModel)
    assert issubclass(found, Saves)
    assert (found.__name__, found.__module__) == ("Saves", Saves.__module__)
    assert found.__qualname__ == "ConvertedSaves"
    assert found.__doc__ == Saves.__doc__
    assert found.forward.__doc__ == Saves.forward.__doc__
    assert inspect.signature(found.forward) == inspect.signature(Saves.forward)


def test_names_of_the_model_are_not_taken_over() -> None:
    class Planned(nn.Linear):
        def casts(self) -> str:
            return "mine"

    found = derived_class(Planned, ConvertedModel, frozenset({"plan"}))
    assert "plan" not in vars(found)
    assert found.casts is Planned.casts
    assert isinstance(found.plans, property)
    assert isinstance(found.rewritten, property)
    part = derived_class(Planned, ConvertedPart, NONE)
    assert not hasattr(part, "plan"), "a part has no name of ours"


def test_a_container_without_a_forward_gets_none() -> None:
    found = derived_class(nn.ModuleList, ConvertedPart, NONE)
    assert found.forward is nn.ModuleList.forward


def test_public_properties_are_those_of_the_programs(made: Any) -> None:
    programs: Any = programs_of(made)
    assert programs is vars(made)[STATE]
    assert made.plan is programs.plan
    assert made.plans == (made.plan,)
    assert made.casts == made.plan.casts != ()
    assert made.rewritten is programs.rewritten
    assert programs_of(made.inner) is None
    assert programs_of(Saves()) is None


def test_parts_share_the_state_and_know_their_paths(made: Any) -> None:
    shared = vars(made)[STATE].shared
    for name, part in made.named_modules():
        assert isinstance(part, ConvertedModel if part is made else ConvertedPart)
        assert vars(part)[STATE].shared is shared
        assert vars(part)[STATE].path == name
        assert isinstance(vars(part)["_modules"], Watched)


@pytest.mark.parametrize(
    ("change", "structure", "tensors"),
    [
        (lambda m: setattr(m, "doubled", True), True, False),
        (lambda m: setattr(m, "epoch", 3), False, False),
        (lambda m: setattr(m, "inner", nn.Identity()), True, False),
        (lambda m: setattr(m.inner, "bias", None), True, True),
        (lambda m: m.inner.register_parameter("bias", None), True, True),
        (lambda m: m.register_buffer("more", torch.ones(1)), True, False),
        (lambda m: setattr(m.inner, "weight", m.inner.weight), False, True),
        (lambda m: delattr(m, "doubled"), True, False),
        (lambda m: delattr(m.inner, "bias"), True, False),
        (lambda m: m.add_module("more", nn.ReLU()), True, False),
        (lambda m: m.inner.register_forward_hook(print), True, False),
        (lambda m: m.register_forward_hook(print), False, False),
        (lambda m: m.eval(), False, False),
        (lambda m: m.load_state_dict(m.state_dict()), False, False),
    ],
)
def test_changes_are_counted(
    made: Any, change: Any, *, structure: bool, tensors: bool
) -> None:
    made = copy.deepcopy(made)
    watch = vars(made)[STATE].shared.watch
    before = watch.structure, watch.tensors
    change(made)
    counted = watch.structure != before[0], watch.tensors != before[1]
    assert counted == (structure, tensors)


def test_a_failed_deletion_is_the_models_error(made: Any) -> None:
    with pytest.raises(AttributeError, match="absent"):
        del made.absent
    with pytest.raises(AttributeError, match="absent"):
        del made.inner.absent


def test_saving_is_that_of_the_plain_model(made: Any) -> None:
    plain, given, named = made.save_pretrained("there", safe=True)
    assert (given, named) == (("there",), {"safe": True})
    assert type(plain) is Saves
    assert plain.inner.weight.dtype == torch.float32
    assert made.save_pretrained.__doc__ == "Save it."
    assert not hasattr(made, "push_to_hub")


def test_the_text_has_the_models_and_that_of_its_precision(made: Any) -> None:
    text = repr(made).split("\n")
    assert text[:2] == ["ConvertedSaves(", "  of mine"]
    assert text[2].startswith("  policy bf16")
    assert "(inner): Linear(" in text[3]


@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, copy.copy, lambda part: pickle.loads(pickle.dumps(part))],
)
def test_a_copy_of_a_part_is_a_plain_module(made: Any, copied: Any) -> None:
    part = copied(made.inner)
    assert type(part) is nn.Linear
    assert vars(part).keys() == vars(nn.Linear(1, 1)).keys()
    assert not isinstance(vars(part)["_modules"], Watched)
    assert torch.equal(part.weight, made.inner.weight)


def test_a_deep_copy_has_programs_of_its_own(made: Any) -> None:
    twin = copy.deepcopy(made)
    ours, theirs = vars(made)[STATE], vars(twin)[STATE]
    assert theirs.shared is not ours.shared
    assert theirs.shared is vars(twin.inner)[STATE].shared
    assert theirs.latest() is not ours.latest()
    assert theirs.shared.root() is twin
    assert torch.equal(twin(X), made(X))
    assert amprewrite.original(twin).inner.weight.dtype == torch.float32


def test_a_pickle_names_the_models_class(made: Any) -> None:
    stored = pickle.dumps(made)
    assert b"ConvertedSaves" not in stored
    twin = pickle.loads(stored)
    assert type(twin) is type(made)
    assert torch.equal(twin(X), made(X))
    assert amprewrite.original(twin).inner.weight.dtype == torch.float32
    assert vars(twin)[STATE].shared.root() is twin


def test_the_mode_of_the_conversion_is_kept(made: Any) -> None:
    for one in (made, made.inner):
        with pytest.raises(UnsupportedError, match="converted for inference in eval"):
            one.train()
        assert one.eval() is one
    assert not made.training


def test_parts_that_are_set_are_made_parts_but_not_programs_of_others(
    made: Any,
) -> None:
    twin, other = copy.deepcopy(made), copy.deepcopy(made)
    twin.inner = new = nn.Sequential(nn.Linear(4, 4), other)
    adopt_parts(twin, vars(twin)[STATE].shared)
    assert isinstance(new, ConvertedPart)
    assert vars(new[0])[STATE].path == "inner.0"
    assert vars(other)[STATE].shared is not vars(twin)[STATE].shared
    assert type(other) is type(made)
    adopt_parts(twin, vars(twin)[STATE].shared)
    assert type(new).__mro__.count(ConvertedPart) == 1
