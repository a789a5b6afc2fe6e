"""Forward hooks on the parts of a converted model."""

import functools
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations, prune

import amprewrite
from amprewrite.frameworks.torch_fx.programs.part_hooks import (
    adopt_hooks,
    hook_keys,
    new_hook,
    users_hooks,
    without_users_hooks,
)

X = torch.ones(2, 4)


def named_hook(*_: Any) -> None:
    """Do nothing."""


def stack() -> Any:
    return nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4))).eval()


@pytest.fixture(scope="module")
def made() -> Any:
    model = stack()
    model[0].register_forward_pre_hook(named_hook)
    return amprewrite.convert(model, args=(X,))


@pytest.mark.parametrize("kind", ["register_forward_hook", "register_forward_pre_hook"])
def test_a_new_hook_is_named_with_its_part(made: Any, kind: str) -> None:
    assert not new_hook(made)
    with getattr(made[1][0], kind)(named_hook):
        assert new_hook(made).startswith("part 1.0 has a hook, named_hook, which was r")
    assert not new_hook(made)


def test_a_hook_without_a_name_is_named_by_its_class(made: Any) -> None:
    with made[1].register_forward_hook(functools.partial(named_hook)):
        assert new_hook(made).startswith("part 1 has a hook, partial, which")


def test_hooks_on_the_model_itself_and_on_plain_parts_are_not(made: Any) -> None:
    with made.register_forward_hook(named_hook):
        assert not new_hook(made)
    plain = nn.Sequential(nn.Linear(4, 4))
    plain[0].register_forward_hook(named_hook)
    assert not new_hook(plain)


def test_a_hook_of_torch_that_computes_a_weight_is_not(made: Any) -> None:
    prune.identity(made[1][0], "weight")
    try:
        assert not new_hook(made)
    finally:
        prune.remove(made[1][0], "weight")


def test_a_part_called_by_itself_may_have_hooks_of_its_own(made: Any) -> None:
    with made[1].register_forward_hook(named_hook):
        assert not new_hook(made[1])


def test_hooks_of_a_forward_are_adopted_and_known(made: Any) -> None:
    ran = stack()
    known = hook_keys(ran)
    own = ran.register_forward_hook(named_hook, with_kwargs=True)
    inner = ran[1][0].register_forward_hook(named_hook)
    assert hook_keys(ran) - known == {own.id, inner.id}
    found = adopt_hooks(ran, made, known)
    try:
        assert found["_forward_hooks"] == {own.id: named_hook}
        assert found["_forward_hooks_with_kwargs"] == {own.id: True}
        assert inner.id in hook_keys(made)
        assert own.id not in hook_keys(made), "the model's own run in its programs"
        assert not new_hook(made)
    finally:
        del made[1][0]._forward_hooks[inner.id]
    assert not adopt_hooks(ran, made, hook_keys(ran))


class Keeper:
    """Object with a method and a call, which could store something."""

    def method(self, *given: Any) -> None:
        """Do nothing."""

    def __call__(self, *given: Any) -> None:
        """Do nothing."""


@pytest.mark.parametrize(
    ("hook", "name"),
    [
        (named_hook, "named_hook"),
        (Keeper().method, "Keeper.method"),
        (Keeper(), "Keeper"),
        (functools.partial(named_hook, 1), "partial"),
    ],
)
def test_a_hook_of_the_user_is_named(hook: Any, name: str) -> None:
    model = stack()
    model[0].register_forward_hook(hook)
    assert [*users_hooks(model)] == [f"{name} of 0"]
    model.register_forward_pre_hook(hook)
    assert len([*users_hooks(model)]) == 2


@pytest.mark.parametrize(
    "hook",
    [functional.relu, functools.partial(functional.relu), nn.ReLU(), torch.relu],
)
def test_a_hook_of_a_library_is_not(hook: Any) -> None:
    model = stack()
    parametrizations.weight_norm(model[0])
    model[0].register_forward_hook(hook)
    assert [*users_hooks(model)] == []


def test_hooks_of_the_user_are_left_out_for_a_while() -> None:
    model, events = nn.Sequential(nn.Linear(4, 4)), list[Any]()
    model[0].register_forward_hook(lambda *given: events.append(given))
    relu: Any = functional.relu
    model[0].register_forward_hook(relu)
    model[0].register_forward_hook(lambda *given: events.append(given))
    order = list(model[0]._forward_hooks)
    model[0]._forward_hooks.pop(order[1])
    order.pop(1)
    with without_users_hooks(model):
        model(torch.ones(4))
        later = model[0].register_forward_hook(lambda *_: None)
    assert not events
    assert list(model[0]._forward_hooks) == [*order, later.id]
    model(torch.ones(4))
    assert len(events) == 2
