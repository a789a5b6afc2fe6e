"""The Equinox adapter: classes, copies and paths; the rest is in the integration."""

import copy

import pytest

jax = pytest.importorskip("jax")
eqx = pytest.importorskip("equinox")

from amprewrite.dispatch import planner
from amprewrite.frameworks.base import Request
from amprewrite.frameworks.jaxpr.modules.equinox import (
    arguments,
    children,
    convert,
    converted_function_of,
    original,
)

MODEL = eqx.nn.MLP(2, 2, 4, 1, key=jax.random.key(0))
REQUEST = Request(planner("bf16"))


class Planned(eqx.Module):
    plan: str = "mine"

    def __call__(self, x):
        return x


def test_one_class_for_each_class_of_models() -> None:
    first, second = convert(MODEL, REQUEST), convert(MODEL, REQUEST)
    assert type(first) is type(second)
    assert converted_function_of(first) is not converted_function_of(second)
    assert jax.tree.structure(first) != jax.tree.structure(second)


def test_the_original_comes_back() -> None:
    converted = convert(MODEL, REQUEST)
    assert type(original(converted)) is eqx.nn.MLP
    assert jax.tree.structure(original(converted)) == jax.tree.structure(MODEL)
    assert original(MODEL) is MODEL
    assert converted_function_of(MODEL) is None
    assert type(arguments(converted, (1,))[0]) is eqx.nn.MLP


def test_children_have_paths() -> None:
    assert [path for path, _ in children(MODEL)] == ["", "layers.0", "layers.1"]


def test_names_of_the_model_come_first() -> None:
    assert convert(Planned(), REQUEST).plan == "mine"


def test_a_copy_is_converted_too() -> None:
    converted = convert(MODEL, REQUEST)
    copied = copy.deepcopy(converted)
    assert type(copied) is type(converted)
    assert converted_function_of(copied) is converted_function_of(converted)
