"""Forward hooks on the parts of a converted model."""

import functools
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.nn.utils import prune

import amprewrite
from amprewrite.frameworks.torch_fx.programs.part_hooks import (
    adopt_hooks,
    hook_keys,
    new_hook,
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
