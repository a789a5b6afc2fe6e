"""Detect changes of a converted model that its captured programs do not have."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import amprewrite
from amprewrite.frameworks.torch_fx.capture.seen import is_settings
from amprewrite.frameworks.torch_fx.capture.tensor_changes import Mark, Marks
from amprewrite.frameworks.torch_fx.derived.classes import ConvertedPart, derived_class
from amprewrite.frameworks.torch_fx.programs.structure import (
    Watch,
    are_same,
    is_simple,
    parts_of,
    portable,
    settings_of,
    structure_key,
    ties_of,
)

READ = frozenset(("config", "scale", "sizes", "flag", "tables", "_flat_weights"))
"""Attributes that programs of the models below read."""


class Config:
    """Settings, one of which the forward reads."""

    def __init__(self) -> None:
        self.scale = 1.0
        self.name = "small"


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.config = Config()
        self.unread = Config()
        self.inner = nn.Linear(2, 2)
        self.register_buffer("mask", None)
        self.flag, self.epoch, self.sizes = False, 0, (1, 2)

    def forward(self, x: Any) -> Any:
        x = self.inner(x) * self.config.scale * self.sizes[0]
        return x if self.flag else -x


def model() -> Any:
    return nn.Sequential(Block(), nn.ReLU())


def renamed(kind: Any) -> Any:
    return derived_class(kind, ConvertedPart, frozenset())


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.train(not m.training),
        lambda m: m[0].inner.eval(),
        lambda m: m.append(nn.ReLU()),
        lambda m: m.__setitem__(1, nn.Tanh()),
        lambda m: m.__delitem__(1),
        lambda m: m[0].inner.register_forward_hook(print),
        lambda m: m[0].register_forward_pre_hook(print),
        lambda m: setattr(m[0], "flag", True),
        lambda m: setattr(m[0], "flag", 0),
        lambda m: setattr(m[0], "sizes", (2, 2)),
        lambda m: setattr(m[0].config, "scale", 2.0),
        lambda m: delattr(m[0], "config"),
    ],
)
def test_the_key_changes_with_what_a_program_is_made_of(
    change: Callable[..., Any],
) -> None:
    one, two = model(), model()
    assert structure_key(one, READ) == structure_key(two, READ)
    hash(structure_key(one, READ))
    change(two)
    assert structure_key(one, READ) != structure_key(two, READ)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: setattr(m[0], "epoch", 3),
        lambda m: setattr(m[0].config, "name", "large"),
        lambda m: setattr(m[0].unread, "scale", 3.0),
        lambda m: setattr(m, "epoch", 3),
        lambda m: m.load_state_dict(Block().state_dict(), strict=False),
        lambda m: setattr(m[0].inner, "weight", nn.Parameter(torch.ones(3, 3))),
        lambda m: m.register_forward_hook(print),
        lambda m: setattr(m[1], "__class__", renamed(nn.ReLU)),
    ],
)
def test_the_key_stays_with_everything_else(change: Callable[..., Any]) -> None:
    one, two = model(), model()
    change(two)
    assert structure_key(one, READ) == structure_key(two, READ)


def test_tensors_with_several_names_are_in_the_key() -> None:
    one = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    apart = structure_key(one, READ)
    one[1].weight = one[0].weight
    tied = structure_key(one, READ)
    assert ties_of(one) == (("0.weight", "1.weight"),)
    assert tied != apart
    assert portable(tied) != portable(apart)
    one[1].weight = nn.Parameter(torch.ones(3, 3))
    assert structure_key(one, READ) == apart


def test_the_key_comes_back() -> None:
    one = model()
    before = structure_key(one, READ)
    one[0].flag = True
    assert structure_key(one, READ) != before
    one[0].flag = False
    assert structure_key(one, READ) == before


def test_parts_are_listed_under_all_of_their_paths() -> None:
    shared = nn.ReLU()
    one = nn.Sequential(shared, nn.Sequential(shared))
    assert [path for path, _ in parts_of(one)] == ["", "0", "1", "1.0"]


@pytest.mark.parametrize(
    ("name", "value", "structure", "tensors"),
    [
        ("flag", True, True, False),
        ("flag", False, True, False),
        ("epoch", 3, False, False),
        ("training", True, False, False),
        ("training", False, True, False),
        ("inner", None, True, False),
        ("inner", nn.Identity(), True, False),
        ("new", nn.Identity(), True, False),
        ("new", torch.ones(1), False, False),
        ("mask", None, True, True),
        ("__class__", Block, True, False),
    ],
)
def test_an_attribute_about_to_be_set_is_counted(
    name: str, value: object, *, structure: bool, tensors: bool
) -> None:
    watch, part = Watch(), Block()
    watch.changed, watch.names = False, READ
    watch.note(part, name, value)
    assert (watch.structure, watch.tensors) == (structure, tensors)
    assert watch.changed is structure
    assert part.inner is not value, "it is not set here"


def test_a_parameter_that_is_removed_is_counted_as_both() -> None:
    watch, part = Watch(), nn.Linear(2, 2)
    watch.note(part, "weight", part.weight)
    assert (watch.structure, watch.tensors) == (0, 1)
    watch.note(part, "bias", None)
    assert (watch.structure, watch.tensors) == (1, 2)


def test_a_count_is_a_change() -> None:
    watch = Watch()
    assert watch.changed, "nothing was looked up yet"
    watch.changed = False
    watch.count()
    assert (watch.structure, watch.changed) == (1, True)


def test_settings_that_are_read_are_kept_as_they_are_and_as_they_were() -> None:
    one: Any = nn.Sequential(Block(), Block())
    one[1].config = one[0].config
    ((now, before),) = settings_of(one, READ)
    assert are_same(now, before)
    one[0].config.name = "large"
    assert (now["name"], before["name"]) == ("large", "small")
    assert not are_same(now, before)


class Tables(nn.Module):
    """Reads constants from a list."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = [torch.ones(2), torch.ones(2)]

    def forward(self, x: Any) -> Any:
        return x + self.tables[0] * self.tables[1]


def test_tensors_in_settings_are_compared_at_once() -> None:
    """One after the other takes 2 us each."""
    one: Any = Tables()
    *_, (now, before) = settings_of(one, READ)
    assert now is before
    assert isinstance(now, Marks)
    assert not any(isinstance(known, Mark) for _, known in settings_of(one, READ))
    assert are_same(now, before)
    one.tables[0].data.mul_(2)
    assert not are_same(now, before)


class Listed(nn.Module):
    """Reads its weight from a list, where another may be put."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4, bias=False)
        self.weights = [self.inner.weight]

    def forward(self, x: Any) -> Any:
        return nn.functional.linear(x, self.weights[0])


def test_weights_in_a_list_are_compared_by_identity() -> None:
    """Programs read them by name."""
    one, names = Listed(), frozenset({"weights"})
    key, settings = (
        structure_key(one, names, by_name=True),
        settings_of(one, names, by_name=True),
    )
    constant = structure_key(one, names)
    one.inner.weight.data.mul_(2)
    assert all(are_same(*pair) for pair in settings)
    assert structure_key(one, names, by_name=True) == key
    assert structure_key(one, names) != constant
    one.inner.weight = nn.Parameter(torch.ones(4, 4))
    assert not all(are_same(*pair) for pair in settings)
    assert structure_key(one, names, by_name=True) != key


def test_the_lists_of_a_recurrent_layer_are_no_part_of_a_key() -> None:
    """They have its parameters, which are compared otherwise, and cannot be pickled."""
    one: Any = nn.LSTM(2, 2)
    names = frozenset({"_flat_weights", "_flat_weight_refs"})
    key = structure_key(one, names)
    one.weight_ih_l0 = nn.Parameter(torch.ones(8, 2))
    assert structure_key(one, names) == key


def _written(model: Any, x: Any) -> list[float]:
    def factor() -> float:
        return round(float((model(x).float() / first).mean()), 1)

    first, found = model(x).float(), list[float]()
    with torch.no_grad():
        model.inner.weight.mul_(2)
        found.append(factor())
        model.inner.weight = nn.Parameter(
            model.inner.weight * 2
        )  # the list has the old
        found.append(factor())
        model.weights[0] = model.inner.weight
        found.append(factor())
        model.weights[0].data.mul_(2)
        found.append(factor())
        model.weights = [nn.Parameter(model.inner.weight * 2)]
        found.append(factor())
    return found


@pytest.mark.parametrize("options", [{}, {"compile": True}])
def test_a_weight_in_a_list_is_followed(options: Any) -> None:
    x = torch.ones(2, 4)
    expected = _written(Listed().eval(), x)
    assert expected == [2, 2, 4, 8, 16]
    converted = amprewrite.convert(Listed().eval(), args=(x,), **options)
    assert _written(converted, x) == expected


def test_settings_with_arrays_are_others_if_the_arrays_are() -> None:
    array = torch.ones(2)
    assert are_same({"a": array}, {"a": array})
    assert not are_same({"a": array}, {"a": array.clone()})


@pytest.mark.parametrize("value", [Config(), copy])
def test_settings_are_objects_with_attributes(value: object) -> None:
    assert is_settings(value)


@pytest.mark.parametrize(
    "value", [nn.ReLU(), torch.ones(1), Config, lambda: 0, 1, "a", [1]]
)
def test_modules_tensors_classes_functions_and_values_are_no_settings(
    value: object,
) -> None:
    assert not is_settings(value)


def test_constants_of_programs_are_numbers_names_dtypes_and_tuples_of_them() -> None:
    simple = (1, 1.0, True, None, "a", b"a", 1j, torch.float32, torch.device("cpu"))
    assert all(map(is_simple, simple))
    assert is_simple(simple)
    assert is_simple((1, (2, "a")))
    assert not any(map(is_simple, ([1], {}, torch.ones(1), (1, [2]), print)))
