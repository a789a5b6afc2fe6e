"""Where equations come from, by what the versions of JAX say of it."""

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from amprewrite.frameworks.jaxpr.compat import tracebacks

X = jnp.ones(4)


def first(function, *args):
    return jax.make_jaxpr(function)(*args or (X,)).jaxpr.eqns[0]


def test_a_line_is_the_users_own():
    line = tracebacks.source_line(first(lambda x: x + 1).source_info.traceback)
    assert line.startswith("test_tracebacks.py:")
    assert tracebacks.source_line(None) == ""


def test_casts_that_the_user_wrote_are_told_from_promotions():
    half = X.astype(jnp.bfloat16)
    written = first(lambda x: x.astype(jnp.float32), half)
    assert tracebacks.is_written_cast(written.source_info.traceback)
    summed = first(lambda x: jnp.sum(x, dtype=jnp.float32), half)
    inner = jax.make_jaxpr(lambda x: jnp.sum(x, dtype=jnp.float32))(half)
    assert not tracebacks.is_written_cast(summed.source_info.traceback)
    assert not tracebacks.is_written_cast(inner.jaxpr.eqns[0].source_info.traceback)
    assert not tracebacks.is_written_cast(None)


@pytest.mark.parametrize(
    ("function", "count"),
    [
        (lambda x: x.astype(jnp.float32) + jnp.asarray(x, jnp.float32), 2),
        (lambda x: jnp.sum(x, dtype=jnp.float32) + jax.nn.softmax(x), 0),
        (lambda x: x.astype(jnp.bfloat16), 0),
        (lambda x: x.astype(x.dtype), 1),
    ],
)
def test_casts_of_float32_to_itself_are_noted(function, count):
    seen = []
    with tracebacks.noting_casts(lambda: seen.append(1)):
        eqns = jax.make_jaxpr(function)(X).jaxpr.eqns
    assert len(seen) == count
    with tracebacks.noting_casts(lambda: seen.append(1)):
        jnp.asarray(X, jnp.float32)  # is no part of a program
    assert len(seen) == count
    assert eqns == [] or eqns[0].primitive.name


def test_an_equation_of_ravel_pytree_is_told_from_a_users_file_of_that_name(tmp_path):
    _, unravel = ravel_pytree([X, X])
    splits = jax.make_jaxpr(unravel)(jnp.ones(8)).jaxpr.eqns
    assert any(tracebacks.is_unravelled(eqn.source_info.traceback) for eqn in splits)
    scope = {}
    text = "def f(x): return x[:2]"
    exec(compile(text, str(tmp_path / "flatten_util.py"), "exec"), scope)
    assert not tracebacks.is_unravelled(first(scope["f"]).source_info.traceback)


def test_the_line_that_is_traced_is_the_users():
    seen = []
    jax.make_jaxpr(lambda _: seen.append(tracebacks.current_line()))(X)
    (line,) = seen
    assert line.startswith("test_tracebacks.py:")


def test_a_directory_of_the_user_may_be_called_jax(tmp_path):
    file = tmp_path / "site-packages" / "amprewrite" / "jax" / "model.py"
    file.parent.mkdir(parents=True)
    file.write_text("def f(x):\n    return x.astype('float32')\n")
    scope = {}
    exec(compile(file.read_text(), str(file), "exec"), scope)
    eqn = first(scope["f"], X.astype(jnp.bfloat16))
    assert tracebacks.is_written_cast(eqn.source_info.traceback)
    assert str(file) in tracebacks.files_of(eqn.source_info.traceback)
    assert tracebacks.source_line(eqn.source_info.traceback) == "model.py:2"
    assert tracebacks.files_of(None) == frozenset()
    scope = {}
    exec("def f(x): return x.astype('float32')", scope)  # as in a shell
    eqn = first(scope["f"], X.astype(jnp.bfloat16))
    assert tracebacks.is_written_cast(eqn.source_info.traceback)
