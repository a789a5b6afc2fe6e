"""Forward hooks of the user that do more than compute, which a capture would lose."""

import functools
import math
import random
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from amprewrite.frameworks.torch_fx.programs.effects import (
    OutsideWrites,
    computes_only,
    generators_drawn_once,
    hooks_with_effects,
    without_effects,
)

FOUND: list[Any] = []
VECTOR = torch.ones(4)
GAIN = 2.0


class Keeper:
    """Object with a method, and with a call, that could keep something."""

    def method(self, *given: Any) -> None:
        """Do nothing."""

    def __call__(self, *given: Any) -> None:
        """Do nothing."""


def keeping(kept: Any) -> Any:
    return lambda *given: kept.append(given)


def adding(vector: Any) -> Any:
    return lambda *given: given[2] + vector


def counted() -> Any:
    count = 0

    def hook(*_: Any) -> None:
        nonlocal count
        count += 1

    return hook


def helper(x: Any) -> Any:
    return x


COMPUTE = {
    "arithmetic": lambda *given: given[2] * 2,
    "a number and a tensor": lambda *given: given[2] * GAIN + VECTOR,
    "a tensor in a closure": adding(VECTOR),
    "functions of libraries": lambda *given: functional.relu(given[2]) * math.pi,
    "in place": lambda *given: given[2].mul_(2),
    "a library's function": functional.relu,
    "a library's partial": functools.partial(functional.relu, inplace=True),
    "a library's object": nn.ReLU(),
    "C": torch.relu,
}
OTHERWISE = {
    "a global list": lambda *given: FOUND.append(given),
    "a list in a closure": keeping([]),
    "a count": counted(),
    "an attribute": lambda m, *_: setattr(m, "seen", True),
    "printing": lambda *_: print("here"),  # noqa: T201  # it is what is looked for
    "a function of the user": lambda *given: helper(given[2]),
    "a method": Keeper().method,
    "an object": Keeper(),
    "a partial of the user": functools.partial(keeping([]), 1),
    "a function inside": lambda *_: [given for given in FOUND],  # noqa: C416  # as above
}


@pytest.mark.parametrize("hook", COMPUTE.values(), ids=list(COMPUTE))
def test_a_hook_that_writes_to_nothing_computes_only(hook: Any) -> None:
    assert computes_only(hook)


@pytest.mark.parametrize("hook", OTHERWISE.values(), ids=list(OTHERWISE))
def test_any_other_hook_of_the_user_may_have_effects(hook: Any) -> None:
    assert not computes_only(hook)


def test_hooks_are_named_with_their_parts() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    parametrizations.weight_norm(model[0])
    model[0].register_forward_hook(COMPUTE["arithmetic"])
    assert not hooks_with_effects(model)
    model[1].register_forward_pre_hook(keeping([]))
    model.register_forward_hook(Keeper())
    assert sorted(hooks_with_effects(model)) == [
        "Keeper of the model itself",
        "keeping.<locals>.<lambda> of 1",
    ]


def test_hooks_with_effects_are_left_out_for_a_while() -> None:
    model, kept = nn.Sequential(nn.Linear(4, 4)), list[Any]()
    model[0].register_forward_hook(keeping(kept), always_call=True)
    model[0].register_forward_hook(COMPUTE["arithmetic"])
    model[0].register_forward_hook(keeping(kept))
    order = list(model[0]._forward_hooks)
    with without_effects(model):
        model(torch.ones(4))
        later = model[0].register_forward_hook(keeping([]))
    assert not kept
    assert list(model[0]._forward_hooks) == [*order, later.id]
    model(torch.ones(4))
    assert len(kept) == 2


NUMBER = 1


def writing(kept: Any, count: Any) -> type[nn.Module]:
    class Writing(nn.Linear):
        """Writes a global variable, a list and a number around it."""

        def forward(self, input: Any) -> Any:  # noqa: A002  # name in nn.Linear
            global NUMBER  # what is tested
            nonlocal count
            NUMBER, count = NUMBER + 1, count + 1
            kept.append(count)
            return super().forward(input)

    return Writing


def test_variables_outside_that_a_forward_writes_are_named_and_put_back() -> None:
    kept = list[int]()
    model = nn.Sequential(writing(kept, 5)(4, 4), nn.ReLU())
    outside = OutsideWrites(model)
    assert outside.names() == []
    model(torch.ones(4))
    assert sorted(outside.names()) == ["NUMBER", "count", "kept"]
    outside.restore()
    assert (NUMBER, kept) == (1, [])
    model(torch.ones(4))
    assert kept == [6]
    outside.restore()


def test_a_dict_that_a_library_made_its_own_is_left_alone() -> None:
    class Registry(dict[Any, Any]):
        def __setitem__(self, key: Any, value: Any) -> None:
            super().__setitem__(str(key), value)

    registry = Registry({"a": 1})

    class Registered(nn.Linear):
        def forward(self, input: Any) -> Any:  # noqa: A002  # name in nn.Linear
            return super().forward(input) * len(registry)

    assert OutsideWrites(Registered(4, 4)).names() == []


def test_generators_that_a_forward_may_draw_from_are_named() -> None:
    class Drawing(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 4)
            self.drawn, self.unused = random.Random(0), random.Random(0)

        def forward(self, input: Any) -> Any:  # noqa: A002  # name in nn.Linear
            return super().forward(input) * self.drawn.random()

    assert generators_drawn_once(nn.Sequential(nn.ReLU(), Drawing())) == ["1.drawn"]
    assert generators_drawn_once(nn.Linear(4, 4)) == []
