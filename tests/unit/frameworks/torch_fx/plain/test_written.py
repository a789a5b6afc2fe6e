"""Attributes that a converted model shares with the model that dynamo captures."""

import copy
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from amprewrite.frameworks.torch_fx.plain.written import (
    share_attributes,
    write_back,
    write_constants,
    written_attributes,
)
from amprewrite.frameworks.torch_fx.untouched.first_constants import Constant


def network() -> Any:
    model: Any = nn.Sequential(nn.Linear(2, 2), nn.GRU(2, 2))
    model.losses, model.count, model[0].seen = [], 0, {"a": 1}
    model.parts, model.by_name, model.bound = [model[0]], {"b": model[1]}, model[0].half
    return model


@pytest.fixture
def pair() -> Any:
    """A model, and a copy that has its attributes."""
    made = network()
    model = copy.deepcopy(made)
    share_attributes(model, made)
    return model, made


def test_values_are_shared_but_neither_modules_nor_state(pair: Any) -> None:
    model, made = pair
    assert model.losses is made.losses
    assert model[0].seen is made[0].seen
    assert model.parts[0] is model[0]
    assert model.by_name["b"] is model[1]
    assert model.bound.__self__ is model[0]
    assert model[0].weight is not made[0].weight
    assert vars(model[1])["_flat_weights"][0] is model[1].weight_ih_l0
    assert not written_attributes(model, made)


def test_written_attributes_are_found_and_written_back(pair: Any) -> None:
    model, made = pair
    model.count += 1
    model[0].new = "value"
    model.parts = [model[1]]
    model[0].weight = nn.Parameter(torch.zeros(2, 2))
    found = written_attributes(model, made)
    assert [(part, here, name) for part, here, name in found] == [
        (model, made, "count"),
        (model[0], made[0], "new"),
    ]
    write_back(found)
    assert (made.count, made[0].new) == (1, "value")
    assert made.parts == [made[0]]
    model.count = 7
    write_back(found)
    assert made.count == 7, "the same attributes are written at each call"


def test_an_attribute_that_is_gone_is_not_written(pair: Any) -> None:
    model, made = pair
    model.count = 5
    found = written_attributes(model, made)
    del model.count
    write_back(found)
    assert made.count == 0


def test_an_attribute_that_the_model_alone_has_is_written_even_if_none(
    pair: Any,
) -> None:
    model, made = pair
    model.hidden = None
    assert written_attributes(model, made) == [(model, made, "hidden")]
    write_back(written_attributes(model, made))
    assert made.hidden is None


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_scripts_are_left_alone() -> None:
    script = torch.jit.script(nn.Linear(2, 2))
    made, model = nn.Sequential(script), nn.Sequential(script)
    share_attributes(model, made)
    assert not written_attributes(model, made)


def test_attributes_that_were_set_are_shared_by_name(pair: Any) -> None:
    model, made = pair
    made.count, made[0].seen = 7, {"b": 2}
    share_attributes(model, made, {"seen"})
    assert model.count == 0
    assert model[0].seen is made[0].seen


def test_constants_are_written_where_nothing_is() -> None:
    made = network()
    made[0].config = SimpleNamespace(kind=None)
    constants = [
        Constant("", "", "ready", True),
        Constant("0", "config", "kind", "regression"),
        Constant("1", "config", "kind", "regression"),  # of which there is none
    ]
    assert write_constants(constants, made)
    assert (made.ready, made[0].config.kind) == (True, "regression")
    made.ready, made[0].config.kind = False, "other"
    assert not write_constants(constants, made)
    assert (made.ready, made[0].config.kind) == (False, "other")
