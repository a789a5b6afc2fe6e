"""Casts that the user wrote are told from those of JAX."""

import threading

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp

from amprewrite.frameworks.jaxpr.compat import equations, tracers

X = jnp.ones(4)


def first(function, *args):
    return jax.make_jaxpr(function)(*args or (X,)).jaxpr.eqns[0]


def test_casts_that_the_user_wrote_are_told_from_promotions():
    half = X.astype(jnp.bfloat16)
    written = first(lambda x: x.astype(jnp.float32), half)
    assert tracers.is_written_cast(written.source_info.traceback)
    summed = first(lambda x: jnp.sum(x, dtype=jnp.float32), half)
    inner = jax.make_jaxpr(lambda x: jnp.sum(x, dtype=jnp.float32))(half)
    assert not tracers.is_written_cast(summed.source_info.traceback)
    assert not tracers.is_written_cast(inner.jaxpr.eqns[0].source_info.traceback)
    assert not tracers.is_written_cast(None)


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
    with tracers.noting_casts(lambda: seen.append(1)):
        eqns = jax.make_jaxpr(function)(X).jaxpr.eqns
    assert len(seen) == count
    with tracers.noting_casts(lambda: seen.append(1)):
        jnp.asarray(X, jnp.float32)  # is no part of a program
    assert len(seen) == count
    assert eqns == [] or eqns[0].primitive.name


def test_a_directory_of_the_user_may_be_called_jax(tmp_path):
    file = tmp_path / "site-packages" / "amprewrite" / "jax" / "model.py"
    file.parent.mkdir(parents=True)
    file.write_text("def f(x):\n    return x.astype('float32')\n")
    scope = {}
    exec(compile(file.read_text(), str(file), "exec"), scope)
    eqn = first(scope["f"], X.astype(jnp.bfloat16))
    assert tracers.is_written_cast(eqn.source_info.traceback)
    assert equations.source_line(eqn.source_info.traceback) == "model.py:2"
    scope = {}
    exec("def f(x): return x.astype('float32')", scope)  # as in a shell
    eqn = first(scope["f"], X.astype(jnp.bfloat16))
    assert tracers.is_written_cast(eqn.source_info.traceback)


def test_a_function_that_jax_has_traced_is_run_once_for_each_key():
    ran = []

    @jax.jit
    def casting(x):
        ran.append(x.dtype)
        return x.astype(jnp.float32) * 2

    jax.make_jaxpr(casting)(X)
    seen = []
    for key, count in (("mine", 1), ("mine", 1), ("", 2), ("", 3)):
        with tracers.noting_casts(lambda: seen.append(1), key):
            jax.make_jaxpr(lambda x: casting(x) + 1)(X)
        assert (len(seen), len(ran)) == (count, count + 1)


def test_a_number_is_no_cast_and_another_thread_notes_its_own():
    seen, other = [], []

    def cast(x):
        return x.astype(jnp.float32) + 1

    def elsewhere():
        jax.make_jaxpr(cast)(X)
        with tracers.noting_casts(lambda: other.append(1)):
            jax.make_jaxpr(cast)(X)

    with tracers.noting_casts(lambda: seen.append(1)):
        jax.make_jaxpr(lambda x: x + jnp.asarray(0.5).astype(x.dtype))(X)
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert (seen, other) == ([], [1])
        jax.make_jaxpr(lambda x: cast(x) * 2)(X)
    assert (seen, other) == ([1], [1])


def test_any_cast_may_be_there_where_jax_has_another_function(monkeypatch):
    monkeypatch.setattr(tracers, "_OMITS", "_renamed")
    seen = []
    with tracers.noting_casts(lambda: seen.append(1)):
        assert seen == [1]
