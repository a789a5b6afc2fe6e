"""Forward hooks on the parts of a converted model."""

import functools
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.nn.utils import prune

import amprewrite
from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.torch_fx.programs.part_hooks import refuse_new_hooks

X = torch.ones(2, 4)


def named_hook(*_: Any) -> None:
    """Do nothing."""


@pytest.fixture(scope="module")
def made() -> Any:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4))).eval()
    model[0].register_forward_pre_hook(named_hook)
    return amprewrite.convert(model, args=(X,))


@pytest.mark.parametrize("kind", ["register_forward_hook", "register_forward_pre_hook"])
def test_a_new_hook_is_refused_with_its_part_and_name(made: Any, kind: str) -> None:
    refuse_new_hooks(made)
    hook = getattr(made[1][0], kind)(named_hook)
    try:
        with pytest.raises(UnsupportedError, match=r"part 1\.0 .*hook, named_hook, .*"):
            refuse_new_hooks(made)
    finally:
        hook.remove()
    refuse_new_hooks(made)


def test_a_hook_without_a_name_is_refused_by_its_class(made: Any) -> None:
    hook = made[1].register_forward_hook(functools.partial(named_hook))
    try:
        with pytest.raises(UnsupportedError, match=r"part 1 .*hook, partial, which"):
            refuse_new_hooks(made)
    finally:
        hook.remove()


def test_hooks_on_the_model_itself_and_on_plain_parts_are_not(made: Any) -> None:
    with made.register_forward_hook(named_hook):
        refuse_new_hooks(made)
    plain = nn.Sequential(nn.Linear(4, 4))
    plain[0].register_forward_hook(named_hook)
    refuse_new_hooks(plain)


def test_a_hook_of_torch_that_computes_a_weight_is_not(made: Any) -> None:
    prune.identity(made[1][0], "weight")
    try:
        refuse_new_hooks(made)
    finally:
        prune.remove(made[1][0], "weight")


def test_a_part_called_by_itself_may_have_hooks_of_its_own(made: Any) -> None:
    with made[1].register_forward_hook(named_hook):
        refuse_new_hooks(made[1])
