"""The attributes that a model reads while it is traced."""

import argparse
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import amprewrite
from amprewrite.frameworks.torch_fx.capture.seen import (
    ALL,
    is_recorded,
    kinds_of_settings,
    recording,
)
from amprewrite.frameworks.torch_fx.plain.plain_class import STATE


class Inner:
    def __init__(self) -> None:
        self.in_inner_settings = 1.0


class Settings:
    def __init__(self) -> None:
        self.in_settings, self.unread_setting, self.inner = 1.0, 1.0, Inner()

    @property
    def kind(self) -> Any:
        return self.in_settings * self.inner.in_inner_settings


class Aliased:
    def __getattr__(self, name: str) -> Any:
        return name


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *args: function(self, *args) * self.in_wrapper


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name in ("wrapper", "property", "lambda", "string", "helper"):
            setattr(self, f"in_{name}", 1.0)
        self.settings, self.unread, self.branch = Settings(), 1.0, False
        self.in_branch, self.inner = 1.0, nn.Linear(4, 4)

    @property
    def gain(self) -> Any:
        return self.in_property

    @decorated
    def forward(self, x: Any) -> Any:
        x = self.inner(x) * self.gain
        x = x * next(map(lambda part: part.in_lambda, [self]))  # noqa: C417  # as users
        x = x * getattr(self, "in_" + "string") * helper(self)
        if self.branch:
            x = x * self.in_branch
        return x * self.settings.kind


def helper(model: Any) -> Any:
    return model.in_helper


READ = {
    *("in_wrapper", "in_property", "in_lambda", "in_string", "in_helper", "branch"),
    *("in_settings", "in_inner_settings", "settings", "inner"),
}


def test_what_is_read_is_recorded_whichever_way() -> None:
    model = Model()
    names = set[str]()
    with recording(names, kinds_of_settings(model)):
        model(torch.ones(2, 4))
    assert names >= READ
    assert names.isdisjoint(("unread", "in_branch", "unread_setting"))
    assert ALL not in names


def test_classes_are_as_before() -> None:
    before = {kind: dict(vars(kind)) for kind in (nn.Module, Settings, Inner)}
    with pytest.raises(KeyError), recording(set(), {Settings, Inner}), recording(set()):
        raise KeyError
    assert before == {kind: dict(vars(kind)) for kind in before}


def test_code_that_reads_a_dict_may_read_any_attribute() -> None:
    model = nn.Linear(2, 2)
    names = set[str]()
    with recording(names):
        model(torch.ones(2, 2))
    assert ALL not in names
    with recording(names):
        vars(model)
    assert ALL in names


def test_a_class_that_looks_attributes_up_itself_still_does() -> None:
    class Loud(nn.Module):
        def __getattribute__(self, name: str) -> Any:
            return 7 if name == "seven" else super().__getattribute__(name)

    names = set[str]()
    with recording(names):
        assert Loud().seven == 7
        assert Loud().training is not None
    assert "training" in names


def test_settings_whose_reads_can_be_recorded() -> None:
    model: Any = Model()
    model.aliased = Aliased()
    model.namespace = SimpleNamespace(settings=Settings())
    assert kinds_of_settings(model) == {Settings, Inner}
    assert is_recorded(Settings)
    assert not any(map(is_recorded, (Aliased, SimpleNamespace, type(print))))


@pytest.mark.parametrize("name", sorted(READ - {"settings", "inner", "branch"}))
def test_a_program_is_captured_again_where_an_attribute_that_it_read_changes(
    name: str,
) -> None:
    torch.manual_seed(0)
    model, x = Model().eval(), torch.ones(2, 4)
    converted: Any = amprewrite.convert(model, args=(x,))
    for changed in (model, converted):
        owner = changed
        if "settings" in name:
            owner = changed.settings.inner if "inner" in name else changed.settings
        setattr(owner, name, 3.0)
    assert torch.allclose(converted(x).float(), model(x), rtol=0.05, atol=0.05)
    assert len(converted.plans) == 2


def test_other_attributes_change_nothing() -> None:
    model, x = Model().eval(), torch.ones(2, 4)
    converted: Any = amprewrite.convert(model, args=(x,))
    converted.unread = converted.in_branch = converted.settings.unread_setting = 5.0
    converted(x)
    assert len(converted.plans) == 1
    converted.branch = True
    expected = model(x) * 5
    assert torch.allclose(converted(x).float(), expected, rtol=0.05, atol=0.05)
    converted.in_branch = 2.0
    assert torch.allclose(converted(x).float(), model(x) * 2, rtol=0.05, atol=0.05)
    assert len(converted.plans) == 3
    converted.branch = False
    converted(x)
    assert len(converted.plans) == 3, "the first program is there still"
    assert "in_branch" in vars(converted)[STATE].shared.watch.names


class Branches(nn.Module):
    """Reads an attribute in a branch, which dynamo captures."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.gain = nn.Linear(4, 4), 1.0

    def forward(self, x: Any) -> Any:
        y = self.inner(x)
        return torch.cond(
            y.sum() > 99, lambda y: y.sin(), lambda y: y * self.gain, (y,)
        )


def test_attributes_that_dynamo_reads_in_a_branch_count() -> None:
    model, x = Branches().eval(), torch.ones(2, 4)
    for _ in range(2):  # dynamo knows the branches the second time
        converted: Any = amprewrite.convert(model, args=(x,))
        converted.gain = 3.0
        assert torch.allclose(converted(x).float(), 3 * model(x), rtol=0.05, atol=0.05)
        assert [plan.captured for plan in converted.plans] == [
            "captured by torch.export"
        ] * 2


class Namespaces(nn.Module):
    """Reads numbers of objects whose classes take no attribute, or have aliases."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.simple = SimpleNamespace(gain=1.0, inner=Settings())
        self.parsed = argparse.Namespace(gain=1.0)
        self.format = logging.Formatter()
        vars(self.format)["gain"] = 1.0

    def forward(self, x: Any) -> Any:
        gain = self.simple.gain * self.parsed.gain * vars(self.format)["gain"]
        return self.inner(x) * gain * self.simple.inner.kind


@pytest.mark.parametrize(
    "change",
    [
        lambda m: setattr(m.simple, "gain", 3.0),
        lambda m: setattr(m.simple.inner, "in_settings", 3.0),
        lambda m: setattr(m.parsed, "gain", 3.0),
        lambda m: vars(m.format).update(gain=3.0),
    ],
)
def test_settings_of_python_are_followed(change: Any) -> None:
    model, x = Namespaces().eval(), torch.ones(2, 4)
    converted: Any = amprewrite.convert(model, args=(x,))
    change(converted)
    assert torch.allclose(converted(x).float(), 3 * model(x), rtol=0.05, atol=0.05)
    assert len(converted.plans) == 2
