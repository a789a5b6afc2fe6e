"""Squares of complex numbers whose root scales what was squared."""

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
from jax import lax

from amprewrite.frameworks.jaxpr.capture.complex_norms import (
    conjugated,
    find_complex_norms,
)
from amprewrite.frameworks.jaxpr.program.inline import inline
from amprewrite.frameworks.jaxpr.program.program import all_steps

Z = jnp.ones((2, 3), "complex64")


def found(function, z=Z):
    program = inline(jax.make_jaxpr(function)(z))
    return program, find_complex_norms(program)


@pytest.mark.parametrize(
    ("function", "squares"),
    [
        (lambda z: z * lax.rsqrt((z * z).sum()), {"mul"}),
        (lambda z: lax.rsqrt((z * z).sum()) * z, {"mul"}),
        (lambda z: z / jnp.sqrt(jnp.mean(z**2, 1, keepdims=True)), {"integer_pow"}),
        (lambda z: z / jnp.sqrt(jnp.square(z).sum() + 1e-6), {"square"}),
        (lambda z: z.T / jnp.sqrt((z * z).sum()), {"mul"}),
        (lambda z: z / (jnp.sqrt((z * z).sum()) + 1e-6), {"mul"}),
        (lambda z: z / jnp.sqrt(0.5 * (z * z).sum()), {"mul"}),
        (lambda z: z / jnp.sqrt(1 / (z * z).sum()), set()),
        (lambda z: z / jnp.sqrt((z * z).sum() + z[0, 0]), set()),
        (lambda z: z / jnp.sqrt((z * z + 1).sum()), set()),
        (lambda z: z / jnp.sqrt((z * z[::-1]).sum()), set()),
        (lambda z: z / jnp.sqrt((z**3).sum()), set()),
        (lambda z: z / jnp.sqrt(jnp.max((z * z).real)), set()),
    ],
)
def test_a_square_is_found_where_its_root_scales_what_was_squared(function, squares):
    program, norms = found(function)
    marked = {s.name for s in all_steps(program.steps) if s.name in norms.scaling}
    assert {name.partition("_1")[0] for name in marked} == squares


def test_real_numbers_are_left_alone():
    _, norms = found(lambda x: x * lax.rsqrt((x * x).sum()), Z.real)
    assert not norms.scaling
    assert not norms.others


def test_what_is_left_alone_is_named_with_its_line():
    _, norms = found(lambda z: jnp.sqrt((z * z).sum()))
    (line,) = norms.warnings()
    assert line.startswith("test_complex_norms.py:")
    assert "because the root does not scale the squared value" in line


def test_only_the_squares_are_marked_at_every_depth():
    def function(z):
        return jax.checkpoint(lambda z: z * lax.rsqrt((z * z).sum()) * z)(z)

    program, norms = found(function)
    marked = conjugated(program, norms)
    names = [s.name for s in all_steps(marked.steps) if s.conjugates]
    assert names == list(norms.scaling)
    assert len(names) == 1
    plain = inline(jax.make_jaxpr(jnp.sin)(Z))
    assert conjugated(plain, find_complex_norms(plain)) is plain


def test_functions_with_a_derivative_of_their_own_are_left_alone():
    ruled = jax.custom_vjp(lambda z: z * lax.rsqrt((z * z).sum()))
    ruled.defvjp(lambda z: (ruled(z), None), lambda _, g: (g,))
    _, norms = found(ruled)
    assert not norms.scaling
    ((_, why),) = norms.others
    assert "derivative rule" in why
