"""Scopes and transformations of equations, by their names."""

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp

from amprewrite.frameworks.jaxpr.compat import equations

X = jnp.ones(4)


def first(function, *args):
    return jax.make_jaxpr(function)(*args or (X,)).jaxpr.eqns[0]


def test_equations_keep_their_scopes_and_contexts():
    def program(x):
        with jax.named_scope("outer"):
            return jnp.sin(x)

    eqn = first(program)
    stack = eqn.source_info.name_stack
    assert equations.scopes(stack) == ("outer",)

    def again(x):
        with (
            jax.named_scope("around"),
            equations.place_in(equations.current(), eqn, stack),
            eqn.ctx.manager,
        ):
            return jnp.cos(x)

    outside = equations.current()

    def exactly(x):
        with jax.named_scope("around"), equations.place_in(outside, eqn, stack):
            return jnp.cos(x)

    assert equations.scopes(first(exactly).source_info.name_stack) == ("outer",)
    found = first(again)
    assert equations.scopes(found.source_info.name_stack) == ("around", "outer")
    assert equations.source_line(found.source_info.traceback) == equations.source_line(
        eqn.source_info.traceback
    )


def test_transformations_of_an_equation_are_named():
    def derived(x):
        return jax.grad(lambda x: jnp.sin(x).sum())(x)

    eqns = jax.make_jaxpr(derived)(X).jaxpr.eqns
    found = [equations.transformations(eqn.source_info.name_stack) for eqn in eqns]
    assert frozenset(("jvp",)) in found
    assert any("transpose" in names for names in found)
    plain = first(jnp.sin).source_info.name_stack
    assert equations.transformations(plain) == frozenset()
