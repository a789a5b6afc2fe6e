"""8 bits inside contractions of JAX programs, against custom rules by hand."""

from functools import cache

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
import numpy as np

import amprewrite
from amprewrite.dtypes.rounding import quantise_scaled
from amprewrite.frameworks.jaxpr.interpret.interpreter import (
    quantise_cotangent,
    quantise_operand,
)

E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"
KEYS = jax.random.split(jax.random.key(0), 3)
W1 = jax.random.normal(KEYS[0], (16, 32)) * 0.25
W2 = jax.random.normal(KEYS[1], (32, 4)) * 0.2
X = jax.random.normal(KEYS[2], (8, 16))


def function(dot):
    """Two contractions around a nonlinearity that XLA compiles quickly."""
    return lambda w1, w2, x: dot(jnp.tanh(dot(x, w1)), w2)


def loss(fun):
    return lambda *args: (fun(*args) ** 2).sum()


def value_and_gradients(fun):
    """Return a function of the result and of the gradients of its loss."""

    def run(*args):
        total, back = jax.vjp(lambda *a: (fun(*a) ** 2).sum(), *args)
        return fun(*args), back(jnp.ones_like(total))

    return run


@cache
def exact_gradients():
    return jax.jit(jax.grad(loss(function(jnp.matmul)), (0, 1, 2)))(W1, W2, X)


@cache
def by_hand(scaling):
    def q(x, name):
        return quantise_scaled(x, name, scaling)

    @jax.custom_vjp
    def dot(a, b):
        return q(a, E4M3) @ q(b, E4M3)

    def backward(saved, g):
        return q(g, E5M2) @ saved[1].T, saved[0].T @ q(g, E5M2)

    dot.defvjp(lambda a, b: (dot(a, b), (q(a, E4M3), q(b, E4M3))), backward)
    return dot


@pytest.mark.parametrize("scaling", ["none", "current"])
def test_it_is_the_computation_by_hand(scaling):
    plain = function(jnp.matmul)
    found = amprewrite.simulate(plain, scaling=scaling, args=(W1, W2, X))
    assert len(found.plan.quantised) == 2
    (same, one), (value, two) = (
        jax.jit(value_and_gradients(f))(W1, W2, X)
        for f in (found, function(by_hand(scaling)))
    )
    np.testing.assert_array_equal(same, value)
    exact = exact_gradients()
    for index in range(3):
        np.testing.assert_allclose(one[index], two[index], rtol=1e-6, atol=1e-6)
        assert abs(one[index] - exact[index]).max() > 1e-3


def test_transformations():
    found = amprewrite.simulate(function(jnp.matmul), args=(W1, W2, X))
    each = jax.jit(jax.vmap(jax.grad(loss(found)), (None, None, 0)))(W1, W2, X[:, None])
    whole = jax.jit(jax.grad(loss(found)))(W1, W2, X)
    assert each.shape == (8, 16, 32)
    np.testing.assert_allclose(each.sum(0), whole, rtol=1e-4, atol=1e-4)
    _, tangent = jax.jit(lambda w: jax.jvp(lambda w: found(w, W2, X), (w,), (w,)))(W1)
    assert jnp.isfinite(tangent).all()
    saved = jax.jit(jax.grad(loss(jax.checkpoint(found))))(W1, W2, X)
    np.testing.assert_allclose(saved, whole, rtol=1e-6, atol=1e-6)


def test_programs_that_jax_transposes():
    """A custom rule with contractions of tangents, and a linear function."""

    @jax.custom_jvp
    def layer(w, x):
        return jnp.tanh(x @ w)

    @layer.defjvp
    def _(primals, tangents):
        (w, x), (dw, dx) = primals, tangents
        y = layer(w, x)
        return y, (1 - y * y) * (x @ dw + dx @ w)

    def ruled(w, x):
        return (layer(w, x) ** 2).sum()

    w = W1[:, :16]
    found = amprewrite.simulate(ruled, args=(w, X))
    one, two = jax.jit(lambda *a: [jax.grad(f)(*a) for f in (found, ruled)])(w, X)
    cosine = (one * two).sum() / jnp.linalg.norm(one) / jnp.linalg.norm(two)
    assert 0.99 < cosine < 0.99999
    linear = amprewrite.simulate(lambda x: x @ w, args=(X,))
    (ct,) = jax.jit(lambda x: jax.linear_transpose(linear, x)(x))(X)
    low, held = (np.asarray(a, np.float32) for a in (X, w))
    wanted = quantise_scaled(low, E5M2, "none") @ quantise_scaled(held, E4M3, "none").T
    np.testing.assert_allclose(ct, wanted, rtol=1e-6, atol=1e-6)


def test_loops_and_convolutions():
    def scanned(w, x):
        return jax.lax.scan(lambda h, _: (jnp.tanh(h @ w), None), x, None, length=3)[0]

    w = W1[:, :16]
    found = amprewrite.simulate(scanned, args=(w, X))
    h = exact = np.asarray(X)
    weight, rounded = np.asarray(w), quantise_scaled(np.asarray(w), E4M3, "none")
    for _ in range(3):
        h = np.tanh(quantise_scaled(h, E4M3, "none") @ rounded)
        exact = np.tanh(exact @ weight)
    off = np.abs(jax.jit(found)(w, X) - h).mean()  # by ties of tanh in two libraries
    assert off < 0.05 * np.abs(exact - h).mean()
    kernel, image = W1.reshape(4, 8, 4, 4)[:, :4], X.reshape(2, 4, 4, 4)
    conv = amprewrite.simulate(
        lambda x, k: jax.lax.conv(x, k, (1, 1), "SAME"), args=(image, kernel)
    )
    rounded = (quantise_scaled(np.asarray(a), E4M3, "none") for a in (image, kernel))
    wanted = jax.lax.conv(*rounded, (1, 1), "SAME")
    np.testing.assert_allclose(jax.jit(conv)(image, kernel), wanted, rtol=1e-6)


def test_the_two_functions():
    x = jnp.array([1.06, 3.3])
    assert quantise_operand(x, E4M3, "none").tolist() == [1.0, 3.25]
    assert jax.grad(lambda x: quantise_operand(x, E4M3, "none") @ x)(x).shape == (2,)
    g = jax.grad(lambda x: quantise_cotangent(x, E5M2, "none") @ jnp.array([1.1, 3.3]))
    assert g(x).tolist() == [1.0, 3.5]
    assert jax.vmap(jax.grad(lambda x: quantise_cotangent(x, E5M2, "none") * 1.1))(
        x
    ).tolist() == [1.0, 1.0]


def test_it_verifies():
    found = amprewrite.simulate(jnp.matmul, args=(X, W1))
    report = amprewrite.verify(jnp.matmul, found, (X, W1))
    assert report.ok
    assert report.error > 0.01


def test_policy_fp8():
    plain = function(jnp.matmul)
    low = amprewrite.convert(plain, "fp8", args=(W1, W2, X * 1e-3))
    assert [d.precision for d in low.plan.quantised] == ["bfloat16"] * 2
    found, exact = jax.jit(jax.grad(loss(low)))(W1, W2, X), exact_gradients()[0]
    cosine = (found * exact).sum() / jnp.linalg.norm(found) / jnp.linalg.norm(exact)
    assert 0.97 < cosine < 0.9999
