"""Classes that objects of another class can be given."""

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import amprewrite
from amprewrite.frameworks.torch_fx.derived.layout import class_before
from tests.torch_programs import relative_error

T = TypeVar("T")


class Role(nn.Module):
    def named(self) -> str:
        return "role"


class Plain(nn.Module):
    def named(self) -> str:
        return "model"

    def forward(self, x: Any) -> Any:
        return 2 * x


class Abstract(ABC, nn.Module):
    @abstractmethod
    def named(self) -> str: ...


class Encoder(Abstract):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def named(self) -> str:
        return "model"

    def forward(self, x: Any) -> Any:
        return self.inner(x)


class Typed(Generic[T], Plain):  # noqa: PYI059  # as some write it
    pass


@pytest.mark.parametrize("kind", [Plain, Encoder, Typed])
def test_an_object_is_given_the_class(kind: Any) -> None:
    made = class_before(Role, kind, {"extra": 3})
    held = kind()
    held.__class__ = made
    assert (held.named(), held.extra) == ("role", 3)
    assert isinstance(held, Role)
    assert isinstance(held, kind)
    assert made.__mro__[:2] == (made, Role)
    assert made.__name__ == kind.__name__


def test_a_class_of_such_a_class_looks_methods_up_in_its_order() -> None:
    made = class_before(Role, Encoder, {})

    class Below(made):
        pass

    assert Below.__mro__[:3] == (Below, made, Role)
    assert Below().named() == "role"


@pytest.mark.parametrize("args", [None, (torch.ones(2, 8),)])
def test_models_with_an_abstract_base_are_converted(args: Any) -> None:
    model, x = nn.Sequential(Encoder(), nn.Tanh(), Encoder()).eval(), torch.ones(2, 8)
    for one in (model, model[0]):
        converted: Any = amprewrite.convert(one, args=args)
        assert 1e-5 < relative_error(converted(x), one(x)) < 2.0**-7
        assert isinstance(converted, type(one))
