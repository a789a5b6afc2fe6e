"""Numbers come from rules; extents may be symbols where a rule only computes."""

import pytest

from amprewrite.errors import UnsupportedError

jax = pytest.importorskip("jax")

import jax.numpy as jnp
from jax import export

from amprewrite.unit_scaling import rule
from amprewrite.unit_scaling.functional_jax import linear, numbers, shape_of, softmax


def exported(function, *shapes):
    made = export.symbolic_args_specs(
        [jax.ShapeDtypeStruct(shape, jnp.float32) for shape, _ in shapes],
        [symbols for _, symbols in shapes],
    )
    return export.export(jax.jit(function))(*made)


def test_numbers_are_those_of_the_rule():
    assert numbers("hardtanh", 2, None) == rule("hardtanh", 2.0)
    assert numbers("softmax", 1.0, None, size=9) == rule("softmax", size=9)


def test_extents_are_numbers_where_they_are_known():
    assert shape_of(jnp.ones((2, 3))) == (2, 3)


def test_an_exported_program_scales_by_the_batch_that_it_is_given():
    def gradient(x, weight):
        return jax.grad(lambda w: linear(x, w).sum())(weight)

    program = exported(gradient, ((2, 4), "b, 4"), ((3, 4), "3, 4"))
    for batch in (2, 9):
        x, weight = jnp.ones((batch, 4)), jnp.ones((3, 4))
        assert jnp.allclose(program.call(x, weight), gradient(x, weight))


def test_an_extent_that_is_integrated_over_is_a_number():
    message = "the rule of softmax needs size as a number, and it is the symbol b"
    with pytest.raises(UnsupportedError, match=message):
        exported(lambda x: softmax(x, 0), ((2, 4), "b, 4"))
