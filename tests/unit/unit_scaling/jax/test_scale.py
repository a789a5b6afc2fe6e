"""One factor forward and another backward, through everything that JAX composes."""

import pytest

from amprewrite.errors import ArgumentError, UnsupportedError

jax = pytest.importorskip("jax")

import jax.numpy as jnp
import numpy as np

from amprewrite.unit_scaling.jax import scale_bwd, scale_fwd

X = np.linspace(-2, 2, 5, dtype=np.float32)
SLOPE = 3.0 * (1 - np.tanh(X) ** 2)
"""The gradient of the total, by hand."""


def model(x):
    return scale_fwd(jnp.tanh(scale_bwd(x, 3.0)), 2.0)


def total(x):
    return model(x).sum()


def close(found, wanted):
    return bool(jnp.allclose(found, wanted, rtol=1e-6))


def test_a_factor_is_for_one_direction():
    value, back = jax.vjp(lambda x: scale_fwd(x, 3.0), X)
    assert close(value, 3 * X)
    assert close(back(X)[0], X)
    value, back = jax.vjp(lambda x: scale_bwd(x, 3.0), X)
    assert close(value, X)
    assert close(back(X)[0], 3 * X)


@pytest.mark.parametrize(
    "transform",
    [
        jax.grad,
        lambda f: jax.jit(jax.grad(f)),
        lambda f: jax.grad(jax.checkpoint(f)),
        lambda f: jax.vmap(jax.grad(f)),
        jax.jacfwd,
    ],
    ids=["grad", "jit", "checkpoint", "vmap", "jacfwd"],
)
def test_transforms(transform):
    assert close(transform(total)(X), SLOPE)


def test_a_scan_multiplies_at_each_step():
    def steps(x):
        return jax.lax.scan(lambda c, _: (scale_bwd(c, 2.0), None), x, None, 3)[0].sum()

    assert close(jax.grad(steps)(X), 8 * jnp.ones_like(X))


def test_a_second_derivative_has_the_factor_once_more():
    twice = jax.grad(jax.grad(lambda x: scale_bwd(x, 3.0) ** 2))
    assert twice(1.0) == 18


def test_a_factor_may_be_traced():
    found = jax.jit(lambda f: jax.grad(lambda x: scale_bwd(x, f).sum())(X))(4.0)
    assert close(found, 4 * jnp.ones_like(X))


def test_a_program_shows_it_by_name():
    assert "amprewrite_scale[backward=1.0 forward=2.0]" in str(jax.make_jaxpr(model)(X))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_the_factor_is_not_rounded_to_a_low_dtype(dtype):
    x = jnp.linspace(-8, 8, 513).astype(dtype)
    factor = 1.3920361404483097
    wide = x.astype("float32")
    assert jnp.array_equal(scale_fwd(x, factor), (wide * factor).astype(dtype))
    found = jax.grad(lambda x: scale_bwd(x, factor).astype("float32").sum())(x)
    assert found.dtype == dtype
    assert jnp.array_equal(found, jnp.full_like(x, factor))


def test_a_numpy_array_is_taken():
    assert isinstance(scale_fwd(np.ones(2, np.float32), 2.0), jax.Array)


def test_a_complex_array_is_refused():
    with pytest.raises(UnsupportedError, match=r"complex array .*x\.real"):
        scale_fwd(X.astype("complex64"), 2.0)


def test_integers_are_refused():
    with pytest.raises(ArgumentError, match="int32; want a float array"):
        scale_bwd(jnp.arange(3), 2.0)
