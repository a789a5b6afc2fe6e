"""What conversion must leave as it is: callbacks, kernels, state, chosen dtypes."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
from jax import lax
from jax.experimental import io_callback

import amprewrite
from amprewrite.errors import AmpWarning
from tests.jax_programs import (
    Case,
    checked_jaxpr,
    dtypes,
    equations,
    full_contractions,
    gradient_of,
    keeps_its_promises,
    normal,
    operand_dtypes,
    over_all,
    relative_error,
    weight,
)

pytestmark = pytest.mark.usefixtures("strict_jax")

X = normal(4, 16)
W = weight(16, 16)


def numpys_sine(x):
    assert x.dtype == np.float32
    return np.sin(x)


def pure(w, x):
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    y = jax.pure_callback(numpys_sine, shape, x @ w, vmap_method="sequential")
    return y @ w


def with_effects(w, x):
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return io_callback(numpys_sine, shape, x @ w, ordered=True) @ w


def debugged(w, x):
    h = x @ w
    jax.debug.callback(assert_float32, h)
    return h @ w


def assert_float32(h):
    assert h.dtype == jnp.float32


def kernel(w, x):
    from jax.experimental import pallas

    def body(x_ref, y_ref):
        assert x_ref.dtype == jnp.float32
        y_ref[...] = jnp.sin(x_ref[...])

    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    run = pallas.pallas_call(body, out_shape=shape, interpret=True)
    return run(x @ w) @ w


def mutable(w, x):
    ref = jax.new_ref(x @ w)
    ref[0] = ref[1] * 2.0
    ref[1:] += 1.0
    return ref[...] @ w


def composed(w, x):
    named = lax.composite(lambda x, w: jnp.tanh(x @ w), name="my.layer")
    return named(x, w) @ w


def batched_by_hand(w, x):
    @jax.custom_batching.custom_vmap
    def layer(x):
        return jnp.sin(x) @ W

    @layer.def_vmap
    def _rule(_size, _batched, x):
        return layer(x.reshape(-1, 16)).reshape(x.shape), True

    return layer(x @ w) @ w


def transposed_by_hand(w, x):
    def forward(w, x):
        return x @ w

    def backward(w, g):
        return g @ w.T

    return jax.custom_derivatives.linear_call(forward, backward, W, x) @ w


def rooted(w, x):
    def solve(f, guess):
        return lax.fori_loop(0, 5, lambda _, y: y - 0.3 * f(y), guess)

    def tangent(g, y):
        return y / g(jnp.ones_like(y))

    b = jnp.abs(x @ w) + 1.0
    return lax.custom_root(lambda y: y * 2.0 - b, b, solve, tangent) @ w


def custom_solve(w, x):
    b = x @ w

    def solve(_, b):
        return b / 3.0

    return lax.custom_linear_solve(lambda y: 3.0 * y, b, solve, symmetric=True) @ w


def reduced(w, x):
    y = lax.reduce(x @ w, jnp.float32(0), lambda a, b: a + b * 1.0, (1,))
    return lax.reduce_precision(x @ w, 8, 3), y


def bits(w, x):
    drawn = jax.random.normal(jax.random.key(0), x.shape)
    flipped = lax.bitcast_convert_type(x @ w, jnp.uint32) ^ 1
    return lax.bitcast_convert_type(flipped, jnp.float32) + drawn


CASES = {
    "pure_callback": Case(pure, (W, X), grad=False),
    "io_callback": Case(with_effects, (W, X), grad=False, vmap=False),
    "debug": Case(debugged, (W, X)),
    "pallas": Case(kernel, (W, X), grad=False),
    "new_ref": Case(mutable, (W, X), vmap=False),
    "composite": Case(composed, (W, X), grad=False, vmap=False),
    "custom_vmap": Case(batched_by_hand, (W, X), grad=False),
    "linear_call": Case(transposed_by_hand, (W, X), vmap=False),
    "custom_root": Case(rooted, (W, X)),
    "custom_linear_solve": Case(custom_solve, (W, X)),
    "reductions of the user": Case(reduced, (W, X), grad=False),
    "bits": Case(bits, (W, X), grad=False, vmap=False),
}


@pytest.mark.parametrize("name", CASES)
def test_a_construct_keeps_its_promises(name):
    keeps_its_promises(CASES[name])


def highest(w, x):
    return jnp.dot(x, w, precision=lax.Precision.HIGHEST)


def preset(w, x):
    return jnp.dot(x, w, precision=lax.DotAlgorithmPreset.F32_F32_F32)


def eighths(w, x):
    low = (a.astype(jnp.float8_e4m3fn) for a in (x, w))
    return lax.dot(*low, preferred_element_type=jnp.float32)


def integers(w, x):
    whole = ((a * 50).astype(jnp.int8) for a in (x, w))
    return lax.dot(*whole, preferred_element_type=jnp.int32)


def halves(w, x):
    return (x.astype(jnp.float16) @ w.astype(jnp.float16)).astype(jnp.float32)


@pytest.mark.parametrize("program", [highest, preset, eighths, integers, halves])
def test_what_the_model_chose_is_untouched_to_the_bit(program):
    converted = amprewrite.convert(program)
    with pytest.warns(AmpWarning, match="nothing was lowered"):
        converted(W, X)
    before, after = (jax.make_jaxpr(f)(W, X) for f in (program, converted))
    kept = [
        [
            (e.primitive.name, *operand_dtypes(e))
            for e in equations(j)
            if "jit" not in e.primitive.name
        ]
        for j in (before, after)
    ]
    assert kept[0] == kept[1]
    assert np.array_equal(program(W, X), converted(W, X))


def test_float64_is_untouched():
    with jax.enable_x64(True):
        wide = (
            jnp.asarray(np.asarray(X), jnp.float64),
            jnp.asarray(np.asarray(W), jnp.float64),
        )

        def program(x, w):
            return jnp.tanh(x @ w) @ w

        converted = amprewrite.convert(program)
        with pytest.warns(AmpWarning, match="nothing was lowered"):
            converted(*wide)
        assert np.array_equal(program(*wide), converted(*wide))
        assert converted(*wide).dtype == jnp.float64


def test_converting_twice_is_converting_once():
    def program(w, x):
        return jax.nn.softmax(jnp.tanh(x @ w) @ w)

    once = amprewrite.convert(program)
    with pytest.warns(AmpWarning, match="nothing was lowered"):
        twice = amprewrite.convert(once, args=(W, X))
    assert np.array_equal(jax.jit(once)(W, X), jax.jit(twice)(W, X))
    assert not full_contractions(checked_jaxpr(twice, W, X))
    gradient = gradient_of(over_all(twice))
    assert not full_contractions(checked_jaxpr(gradient, (W, X)))


def test_policy_off_is_the_program_itself():
    def program(w, x):
        return jax.nn.softmax(jnp.tanh(x @ w) @ w), x.sum()

    converted = amprewrite.convert(program, "off")
    plain, found = (jax.make_jaxpr(f)(W, X) for f in (program, converted))
    flat = [[e.primitive.name for e in equations(j)] for j in (plain, found)]
    assert [n for n in flat[0] if "jit" not in n] == flat[1]
    assert np.array_equal(program(W, X)[0], converted(W, X)[0])


def test_a_branch_of_a_loop_that_calls_back_keeps_its_dtypes():
    def program(w, x):
        def turn(h, _):
            h = jnp.tanh(h @ w)
            return h, pure(w, h)

        return lax.scan(turn, x, None, length=2)

    converted = amprewrite.convert(program)
    found, expected = converted(W, X), program(W, X)
    assert dtypes(found) == dtypes(expected)
    assert relative_error(found, expected) <= 3e-2
