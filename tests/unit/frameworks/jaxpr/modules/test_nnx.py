"""The NNX adapter: classes, copies and paths; the rest is in the integration."""

import copy

import pytest

jax = pytest.importorskip("jax")
nnx = pytest.importorskip("flax.nnx")

from amprewrite.dispatch import planner
from amprewrite.frameworks.base import Request
from amprewrite.frameworks.jaxpr.modules.nnx import (
    arguments,
    children,
    convert,
    converted_function_of,
    original,
)

REQUEST = Request(planner("bf16"))


@pytest.fixture
def model():
    rngs = nnx.Rngs(0)
    return nnx.Sequential(nnx.Linear(2, 4, rngs=rngs), nnx.BatchNorm(4, rngs=rngs))


def test_one_class_for_each_class_of_models(model) -> None:
    first, second = convert(model, REQUEST), convert(model, REQUEST)
    assert type(first) is type(second)
    assert converted_function_of(first) is not converted_function_of(second)


def test_the_original_comes_back(model) -> None:
    converted = convert(model, REQUEST)
    again = original(converted)
    assert type(again) is nnx.Sequential
    assert again.layers is model.layers
    assert original(model) is model
    assert converted_function_of(model) is None
    _, graphdef, x = arguments(converted, (1,))
    assert graphdef == nnx.graphdef(model)
    assert x == 1


def test_children_have_paths(model) -> None:
    found = [path for path, _ in children(model)]
    assert found == ["", "layers.0", "layers.1", "layers"]


def test_a_copy_is_converted_too(model) -> None:
    converted = convert(model, REQUEST)
    copied = copy.deepcopy(converted)
    assert type(copied) is type(converted)
    assert converted_function_of(copied) is converted_function_of(converted)
    assert copied.layers[0] is not model.layers[0]


def test_a_view_of_a_converted_model_sets_attributes_without_a_warning(model) -> None:
    x = jax.numpy.ones((3, 2))
    view = nnx.view(convert(model, REQUEST), use_running_average=True)
    expected = nnx.view(model, use_running_average=True)(x)
    assert 0 < abs(view(x) - expected).max() < 0.02
