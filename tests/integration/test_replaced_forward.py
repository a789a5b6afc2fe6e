"""A ``forward`` that was set on the object, before the conversion or after it."""

import copy
from collections.abc import Callable
from functools import partial, update_wrapper
from types import MethodType
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import amprewrite
from tests.torch_programs import relative_error

ROUNDING = 2.0**-8
X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))

FACTOR = 3


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).eval()


def by_method(part: Any) -> None:
    """Wrap ``forward`` as accelerate does for mixed precision."""
    inner = part.forward.__func__
    part.forward = MethodType(lambda self, x: FACTOR * inner(self, x), part)


def by_partial(part: Any) -> None:
    """Wrap ``forward`` as accelerate does for its hooks."""
    part.inner_forward = part.forward

    def run(self: Any, *args: Any) -> Any:
        return FACTOR * self.inner_forward(*args)

    part.forward = update_wrapper(partial(run, part), part.inner_forward)


def by_closure(part: Any) -> None:
    inner = part.forward
    part.forward = lambda x: FACTOR * inner(x)


WRAPS = pytest.mark.parametrize("wrap", [by_method, by_partial, by_closure])
PATHS = pytest.mark.parametrize("path", ["", "0"])


def expected(wrap: Callable[[Any], None], path: str) -> Any:
    model = network()
    wrap(model.get_submodule(path))
    with torch.no_grad():
        return model(X)


def is_lowered(converted: Any) -> bool:
    linear = [d for d in converted.plan.decisions if d.op.startswith("linear")]
    return {d.operands[0] for d in linear} == {"bfloat16"}


@WRAPS
@PATHS
def test_one_set_after_the_conversion_runs(wrap: Any, path: str) -> None:
    converted: Any = amprewrite.convert(network())
    before = converted(X)
    wrap(converted.get_submodule(path))
    found = converted(X)
    assert is_lowered(converted)
    assert relative_error(found, expected(wrap, path)) < 2 * ROUNDING
    assert relative_error(found, before) > 0.5


@pytest.mark.parametrize("wrap", [by_method, by_partial])
@pytest.mark.parametrize("args", [None, (X,)])
def test_that_of_the_model_is_converted(wrap: Any, args: Any) -> None:
    model = network()
    wrap(model)
    made: Any = amprewrite.convert(model, args=args)
    for converted in (made, copy.deepcopy(made)):
        assert relative_error(converted(X), model(X)) < 2 * ROUNDING
        assert not torch.equal(converted(X), model(X))
        assert is_lowered(converted)
        original = amprewrite.original(converted)
        assert relative_error(original(X), model(X)) < 2 * ROUNDING
        assert type(original) is nn.Sequential


def test_one_around_the_programs_is_not_of_the_model() -> None:
    converted = amprewrite.convert(network())
    by_method(converted)
    assert torch.equal(amprewrite.original(converted)(X), network()(X))


def test_wrong_arguments_are_named_as_the_model_names_them() -> None:
    converted: Any = amprewrite.convert(network(), args=(X,))
    by_partial(converted)
    with pytest.raises(TypeError, match=r"Sequential\.forward\(input\).*too many"):
        converted(X, X)
