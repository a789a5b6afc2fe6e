"""What is traced is seen before JAX looks at it, in one thread and for a while."""

import threading

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
from jax import lax
from jax.extend import core as jex

from amprewrite.frameworks.jaxpr.compat.binding import (
    Watcher,
    unwatched,
    watching,
)

X = jnp.ones(3)


def recorder(seen):
    def operands(primitive, args):
        seen.append(primitive.name)
        return args

    return operands


def test_every_primitive_is_seen_at_every_depth():
    seen = []
    with watching(Watcher(recorder(seen), {}), "test"):
        jax.make_jaxpr(lambda x: jax.jit(jnp.sin)(lax.map(jnp.cos, x)))(X)
    assert {"sin", "cos", "scan"} <= set(seen)
    before = len(seen)
    jnp.tan(X)
    assert len(seen) == before


def test_operands_may_be_replaced():
    watcher = Watcher(lambda _, args: tuple(x * 1 for x in args), {})
    with pytest.raises(RecursionError), watching(watcher, "test"):
        lax.sin(X)

    def doubled(_, args):
        with unwatched():
            return tuple(x * 2 for x in args)

    with watching(Watcher(doubled, {}), "test"):
        found = jax.make_jaxpr(lax.sin)(X)
    assert [eqn.primitive.name for eqn in found.eqns] == ["mul", "sin"]


def test_loops_are_seen_also_those_that_jax_makes_of_others():
    seen = []

    def scan(original, *args, **kwargs):
        seen.append(args[0])
        return original(*args, **kwargs)

    with watching(Watcher(recorder([]), {"scan": scan}), "test"):
        jax.make_jaxpr(lambda x: lax.scan(lambda c, _: (c, None), x, None, 2))(X)
        jax.make_jaxpr(lambda x: lax.fori_loop(0, 2, lambda _, c: c, x))(X)
        lax.while_loop(lambda c: c[0] < 1, lambda c: c + 1, X)  # nobody asked
    assert len(seen) == 2


def test_the_states_of_equinox_are_seen():
    eqx = pytest.importorskip("equinox")
    make = eqx.nn.make_with_state(eqx.nn.StateIndex)
    index, state = make(X)
    seen = []

    def set_state(original, state, item, value):
        seen.append(value)
        return original(state, item, value)

    with watching(Watcher(recorder([]), {"set_state": set_state}), "test"):
        state = state.set(index, X * 2)
    assert len(seen) == 1
    assert (state.get(index) == 2).all()


def test_all_is_as_before_afterwards_also_after_an_error():
    before = (jex.Primitive.bind, lax.scan, lax.cond)
    with pytest.raises(ValueError, match="inside"):
        fail_inside()
    assert (jex.Primitive.bind, lax.scan, lax.cond) == before


def fail_inside():
    watcher = Watcher(recorder([]), {})
    with watching(watcher, "outer"), watching(watcher, "inner"):
        raise ValueError("inside")


def test_another_thread_sees_nothing():
    seen = []
    with watching(Watcher(recorder(seen), {}), "test"):
        thread = threading.Thread(target=lambda: lax.tan(X))
        thread.start()
        thread.join()
    assert seen == []


def test_traces_of_jitted_parts_are_kept_apart():
    part = jax.jit(lambda x: lax.sin(x))  # noqa: PLW0108  # a function of its own

    def negated(primitive, args):
        with unwatched():
            return tuple(-x for x in args) if primitive.name == "sin" else args

    with watching(Watcher(negated, {}), "negated"):
        found = jax.jit(lambda x: part(x))(X)  # noqa: PLW0108  # traces it inside
    assert (found == -lax.sin(X)).all()
    assert (part(X) == lax.sin(X)).all()
