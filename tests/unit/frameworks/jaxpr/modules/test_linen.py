"""The linen adapter: classes and copies; the rest is in the integration."""

import pytest

jax = pytest.importorskip("jax")
nn = pytest.importorskip("flax.linen")

from amprewrite.dispatch import planner
from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.base import Request
from amprewrite.frameworks.jaxpr.modules.linen import (
    Bound,
    arguments,
    convert,
    converted_function_of,
    original,
)

MODEL = nn.Dense(4)
REQUEST = Request(planner("bf16"))


def test_one_class_for_each_class_of_models() -> None:
    first, second = convert(MODEL, REQUEST), convert(MODEL, REQUEST)
    assert type(first) is type(second)
    assert converted_function_of(first) is not converted_function_of(second)
    assert converted_function_of(first) is converted_function_of(first)
    assert first == second  # they have the same fields


def test_the_original_comes_back() -> None:
    converted = convert(MODEL, REQUEST)
    assert original(converted) == MODEL
    assert type(original(converted)) is nn.Dense
    assert original(MODEL) is MODEL
    assert converted_function_of(MODEL) is None


def test_args_are_those_of_apply() -> None:
    converted = convert(MODEL, REQUEST)
    assert arguments(converted, ({}, 2)) == ({}, 2)
    for args, found in (((1, 2), "int"), ((), "nothing")):
        with pytest.raises(UnsupportedError, match=f"start with {found}; .*apply"):
            arguments(converted, args)


def test_a_bound_module_gives_fields_and_methods() -> None:
    bound = Bound(convert(MODEL, REQUEST), {}, None)
    assert bound.features == 4
    assert bound.setup.keywords == {"method": "setup"}


def test_a_function_that_linen_binds_a_module_for_is_refused() -> None:
    def twice(module, x):
        return 2 * module(x)

    converted, x = convert(MODEL, REQUEST), jax.numpy.ones((2, 3))
    variables = nn.init(twice, converted)(jax.random.key(0), x)
    with pytest.raises(UnsupportedError, match=r"full precision; call .*method=func"):
        nn.apply(twice, converted)(variables, x)
    found = converted.apply(variables, x, method=twice)
    expected = nn.apply(twice, MODEL)(variables, x)
    assert 0 < abs(found - expected).max() < 0.02
