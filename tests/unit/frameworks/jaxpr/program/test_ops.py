"""The table of primitives: names that policies know, and dtypes of values."""

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp

from amprewrite.frameworks.jaxpr.program.program import (
    FENCES,
    canonical_name,
    dtype_name,
)


def test_dashes_are_no_part_of_a_name() -> None:
    assert canonical_name("scatter-add") == "scatter_reduce"
    assert canonical_name("some-new-op") == "some_new_op"
    assert canonical_name("tanh") == "tanh"


def test_fences_are_explained() -> None:
    assert all(FENCES.values())


def test_keys_and_references_have_names_that_are_no_floats() -> None:
    assert dtype_name(jnp.ones(2, jnp.bfloat16)) == "bfloat16"
    assert dtype_name(jax.random.key(0)).startswith("key<")
    assert dtype_name(object()) == "object"
