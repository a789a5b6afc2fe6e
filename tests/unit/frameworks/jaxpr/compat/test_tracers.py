"""Tracers, and values made inside of a trace."""

import gc
import weakref
from contextlib import nullcontext

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp

from amprewrite.frameworks.jaxpr.compat import equations, tracers

X = jnp.ones(4)


def first(function, *args):
    return jax.make_jaxpr(function)(*args or (X,)).jaxpr.eqns[0]


def test_tracers_are_told_from_arrays():
    seen = []
    jax.make_jaxpr(lambda x: seen.append(tracers.is_tracer(x)))(X)
    assert seen == [True]
    assert not tracers.is_tracer(X)


def test_the_parts_of_a_custom_rule_are_found_and_wrapped():
    function = jax.custom_jvp(lambda x: x * 2.0)
    function.defjvp(lambda p, t: (function(*p), t[0] * 3.0))
    eqn = first(function)
    value, rule = equations.bind_params(eqn)["subfuns"]
    assert list(value.call_wrapped(X)) == [pytest.approx(2.0 * X)]
    assert len(rule.call_wrapped(X, X)) == 2
    params = equations.bind_params(eqn)
    params["subfuns"] = (tracers.wrapped(lambda x: [x * 5.0], value), rule)
    (made,) = eqn.primitive.bind(X, **params)
    assert (made == 5.0).all()


def test_a_jaxpr_is_kept_by_types_and_settings_while_its_function_lives():
    traces = []

    def twice(x):
        traces.append(x.dtype)
        return [x * 2 + jnp.zeros((), float)]

    fun = tracers.traceable(twice, 1)
    found = tracers.jaxpr_of(fun, (X,))
    assert tracers.jaxpr_of(fun, (X + 1,)) is found
    assert str(found.jaxpr) == str(jax.make_jaxpr(twice)(X).jaxpr)
    traces.clear()
    assert tracers.jaxpr_of(fun, (jnp.ones(5),)).in_avals[0].shape == (5,)
    with jax.enable_x64(True):
        wide = tracers.jaxpr_of(fun, (X,))
    assert wide.out_avals[0].dtype == jnp.float64
    assert tracers.jaxpr_of(fun, (X,)) is found
    assert len(traces) == 2
    jax.clear_caches()
    assert tracers.jaxpr_of(fun, (X,)) is not found
    held = weakref.ref(twice)
    del fun, twice
    gc.collect()
    assert held() is None


@pytest.mark.skipif(jax.device_count() < 8, reason="needs eight devices")
def test_a_number_may_differ_over_the_axes_that_a_value_does():
    mesh = jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    seen = []

    def body(x):
        same = jnp.zeros(())
        seen.extend((jax.typeof(same), jax.typeof(tracers.varying_as(same, x))))
        return x * tracers.varying_as(same, x)

    spec = jax.sharding.PartitionSpec("d")
    jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec)(jnp.ones(8))
    assert "d" not in str(seen[0])
    assert "V:d" in str(seen[1])
    plain = jnp.zeros(())
    assert tracers.varying_as(plain, X) is plain


def test_what_is_computed_while_tracing_is_computed_at_once():
    seen = []

    def traced(x):
        seen.append(tracers.is_tracer(jax.numpy.ones(()) + 1))
        with tracers.evaluated_now():
            seen.append(tracers.is_tracer(jax.numpy.ones(()) + 1))
        return x

    jax.make_jaxpr(traced)(1.0)
    assert seen == [True, False]
    # JAX's own context forgets the axes of a manual mesh.
    assert isinstance(tracers.evaluated_now(), nullcontext)
