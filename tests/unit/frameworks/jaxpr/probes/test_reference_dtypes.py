"""Programs run in other dtypes: also what pins float32, draws, or has a rule."""

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
import numpy as np
from jax import lax

from amprewrite.frameworks.jaxpr.probes.full_precision import Wide, is_inexact
from amprewrite.frameworks.jaxpr.program.inline import inline

TO_64 = {"float32": "float64", "complex64": "complex128"}
X = jnp.arange(1, 7, dtype=jnp.float32).reshape(2, 3) / 7


def wide(function, *args, dtypes=TO_64):
    """Run a function in float64; return the outputs and what was kept."""
    found = Wide(inline(jax.make_jaxpr(function)(*args)), dtypes)
    with jax.enable_x64(True):
        return [np.asarray(x) for x in found(found.inputs(args))], found.kept


def check(function, *args, wanted):
    (found, *_), kept = wide(function, *args)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, wanted, rtol=1e-14)
    assert not kept
    assert not jax.config.jax_enable_x64


x64 = np.asarray(X, np.float64)


def test_what_pins_float32_is_followed():
    third = np.float64(np.float32(1 / 3))
    check(
        lambda x: x.astype(jnp.float32) * jnp.full((3,), 1 / 3, jnp.float32),
        X,
        wanted=x64 * third,
    )


def test_constants_are_widened():
    weight = jnp.ones((3, 2)) / 3
    check(lambda x: x @ weight, X, wanted=x64 @ np.asarray(weight, np.float64))


def test_an_argument_is_rounded_first_as_jax_does():
    exact = np.full((2, 3), 1 / 3)
    check(lambda x: x * 3, exact, wanted=np.float64(np.float32(1 / 3)) * 3)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: lax.scan(lambda c, y: (c + y / 3, None), x[0] * 0, x)[0],
        lambda x: lax.fori_loop(0, 2, lambda i, c: c + x[i] / 3, x[0] * 0),
        lambda x: lax.cond(x[0, 0] > 0, lambda y: y.sum(0) / 3, lambda y: y[0], x),
        jax.checkpoint(lambda x: x.sum(0) / 3),
        jax.jit(lambda x: x.sum(0) / 3),
        lambda x: jnp.zeros(3).at[jnp.array([0, 1, 2])].add(x.sum(0) / 3),
        lambda x: lax.reduce(x / 3, 0.0, lambda a, b: a + b, (0,)),
        lambda x: jnp.zeros(3).at[:].set(x.sum(0) / 3),
    ],
    ids=["scan", "while", "cond", "remat", "jit", "scatter_add", "reduce", "scatter"],
)
def test_bodies_are_widened(function):
    check(function, X, wanted=x64.sum(0) / 3)


def test_complex_values_are_widened_too():
    check(lambda x: jnp.abs(jnp.fft.ifft(jnp.fft.fft(x))), X, wanted=x64)


@jax.custom_vjp
def clipped(x):
    return x / 3


clipped.defvjp(lambda x: (x / 3, x), lambda x, g: (g.clip(-0.1, 0.1) * x / 3,))


@jax.custom_jvp
def bent(x):
    return x / 3


bent.defjvp(lambda p, t: (p[0] / 3, t[0] * p[0] / 7))


@pytest.mark.parametrize(
    ("function", "factor"), [(clipped, 0.1 / 3), (bent, 1 / 7)], ids=["vjp", "jvp"]
)
def test_rules_are_followed_in_float64(function, factor):
    found = Wide(inline(jax.make_jaxpr(function)(X)), TO_64)
    with jax.enable_x64(True):
        (x,) = found.inputs([X])
        gradient = jax.grad(lambda y: found([y])[0].sum())(x)
    wanted = factor if function is bent else np.float64(np.float32(0.1)) / 3
    np.testing.assert_allclose(gradient, wanted * x64, rtol=1e-14)


def test_random_numbers_are_the_same():
    def draw(key):
        return (
            jax.random.uniform(key, (5,)),
            jax.random.normal(key, (5,)),
            jax.random.gamma(key, 2.0, (5,)),
            jax.random.randint(key, (5,), 0, 100),
            jax.random.bernoulli(key, 0.3, (5,)),
        )

    key = jax.random.key(3)
    found, kept = wide(draw, key)
    wanted = [np.asarray(x) for x in draw(key)]
    for one, two in zip(found[:3], wanted[:3], strict=True):
        assert one.dtype == np.float64
        np.testing.assert_allclose(one, two, rtol=1e-5)
    for one, two in zip(found[3:], wanted[3:], strict=True):
        assert one.dtype == two.dtype
        np.testing.assert_array_equal(one, two)
    assert set(kept.values()) == {"random_gamma"}


def test_what_has_one_dtype_runs_in_it_and_is_recorded():
    def double(x):
        assert x.dtype == np.float32
        return x * 2

    def call(x):
        return jax.pure_callback(double, jax.ShapeDtypeStruct(x.shape, x.dtype), x) / 3

    (found,), kept = wide(call, X)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, x64 * 2 / 3, rtol=1e-15)
    assert kept == {"pure_callback": "pure_callback"}


def test_the_bits_of_a_float_are_those_of_its_own_dtype():
    (found,), kept = wide(lambda x: lax.bitcast_convert_type(x, jnp.int32), X)
    np.testing.assert_array_equal(found, np.asarray(X).view(np.int32))
    assert list(kept.values()) == ["bitcast_convert_type"]


def test_a_precision_by_algorithm_gives_way():
    def product(x):
        preset = lax.DotAlgorithmPreset.F32_F32_F32
        return lax.dot(x, x.T, precision=preset)

    check(product, X, wanted=x64 @ x64.T)


def test_values_may_become_low_too():
    (found,), _ = wide(lambda x: jnp.exp(x) / 3, X, dtypes={"float32": "bfloat16"})
    assert found.dtype == jnp.bfloat16
    np.testing.assert_allclose(found.astype(float), np.exp(x64) / 3, rtol=1e-2)


def test_keys_and_integers_are_not_inexact():
    assert is_inexact("bfloat16")
    assert is_inexact("complex64")
    assert not is_inexact("int32")
    assert not is_inexact("key<fry>")
