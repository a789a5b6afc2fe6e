"""Modules that a model holds outside of its submodules."""

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from amprewrite.frameworks.torch_fx.plain.hidden import HiddenTensors, hidden_modules


def test_they_are_found_in_lists_dicts_and_objects() -> None:
    model: Any = nn.Sequential(nn.Linear(2, 2))
    hidden = [nn.Linear(2, 2) for _ in range(4)]
    model.listed, model.named = [hidden[0]], {"a": (hidden[1],)}
    model.settings = SimpleNamespace(teacher=hidden[2])
    vars(model)["direct"] = hidden[3]
    model.alias, model.itself = [model[0]], [model]
    assert hidden_modules(model) == {id(part): part for part in hidden}


def by_data(layer: Any) -> None:
    layer.weight.data.mul_(0.5)


def counted(layer: Any) -> None:
    with torch.no_grad():
        layer.weight.add_(1)


def replaced(layer: Any) -> None:
    layer.weight = nn.Parameter(layer.weight.detach().clone())


def switched(layer: Any) -> None:
    layer.eval()


@pytest.mark.parametrize("change", [by_data, counted, replaced, switched])
def test_a_change_is_detected(change: Any) -> None:
    layer = nn.Linear(2, 2)
    before, same = (
        HiddenTensors([layer], frozenset()),
        HiddenTensors([layer], frozenset()),
    )
    assert before.hold()
    assert before == same
    change(layer)
    assert not before.hold()
    assert before != HiddenTensors([layer], frozenset())
