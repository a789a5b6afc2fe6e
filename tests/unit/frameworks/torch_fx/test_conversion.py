from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from amprewrite.dispatch import planner
from amprewrite.frameworks.base import Request
from amprewrite.frameworks.torch_fx.conversion import Conversion

X = torch.ones(2, 4)


def subject(model: Any, **fields: Any) -> Conversion:
    return Conversion(model, Request(planner("bf16"), **fields))


@pytest.mark.parametrize("mode", [True, False])
@pytest.mark.parametrize("asked", [True, False, None])
def test_training_is_asked_for_or_the_mode(*, mode: bool, asked: bool | None) -> None:
    found = subject(nn.Linear(4, 4).train(mode), training=asked)
    assert found.trains is (mode if asked is None else asked)
    assert found.mode == ("train" if mode else "eval")


def test_a_program_has_no_mode_and_needs_no_arguments() -> None:
    exported = torch.export.export(nn.Linear(4, 4), (X,), strict=False)
    found = subject(exported)
    assert found.at_once
    assert found.mode == ""
    assert isinstance(found.root, nn.Module)
    graph = subject(exported.module(check_guards=False))
    assert (graph.mode, graph.at_once) == ("", False)


@pytest.mark.parametrize("given", [{"args": ()}, {"kwargs": {}}])
def test_empty_arguments_are_arguments(given: Any) -> None:
    found = subject(nn.Linear(4, 4), **given)
    assert (found.at_once, found.args, found.kwargs) == (True, (), {})
    assert not subject(nn.Linear(4, 4)).at_once
