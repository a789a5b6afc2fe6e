"""Where equations come from, by what the versions of JAX say of it."""

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from amprewrite.frameworks.jaxpr.compat import equations

X = jnp.ones(4)


def first(function, *args):
    return jax.make_jaxpr(function)(*args or (X,)).jaxpr.eqns[0]


def test_a_line_is_the_users_own():
    line = equations.source_line(first(lambda x: x + 1).source_info.traceback)
    assert line.startswith("test_tracebacks.py:")
    assert equations.source_line(None) == ""


def test_an_equation_of_ravel_pytree_is_told_from_a_users_file_of_that_name(tmp_path):
    _, unravel = ravel_pytree([X, X])
    splits = jax.make_jaxpr(unravel)(jnp.ones(8)).jaxpr.eqns
    assert any(equations.is_unravelled(eqn.source_info.traceback) for eqn in splits)
    scope = {}
    text = "def f(x): return x[:2]"
    exec(compile(text, str(tmp_path / "flatten_util.py"), "exec"), scope)
    assert not equations.is_unravelled(first(scope["f"]).source_info.traceback)


def test_the_line_that_is_traced_is_the_users():
    seen = []
    jax.make_jaxpr(lambda _: seen.append(equations.current_line()))(X)
    (line,) = seen
    assert line.startswith("test_tracebacks.py:")
