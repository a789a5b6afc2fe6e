"""Whole programs of JAX whose ops no longer fit the rules one by one."""

import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp
from jax import lax

import amprewrite
from amprewrite.unit_scaling import check_gradient_validity

D = 16
KEYS = iter(jax.random.split(jax.random.key(0), 20))


def normal(*shape):
    return jax.random.normal(next(KEYS), shape)


def recurrent(p, steps):
    """A gated recurrent unit as a scan."""

    def turn(h, x):
        (ar, az, an), (br, bz, bn) = (
            jnp.split(z, 3, -1) for z in (x @ p["read"], h @ p["keep"])
        )
        r, z = jax.nn.sigmoid(ar + br), jax.nn.sigmoid(az + bz)
        return (1 - z) * jnp.tanh(an + r * bn) + z * h, None

    start = jnp.zeros((steps.shape[1], D))
    return lax.scan(turn, start, steps)[0]


def losses(p, x, y, t):
    """A total beside its terms, as training steps return them for a log."""
    h = jax.nn.gelu(x @ p["in"]) @ p["out"]
    found = jax.nn.log_softmax(h @ p["one"])
    one = -jnp.take_along_axis(found, y[:, None], 1).mean()
    two = ((h @ p["two"])[:, 0] - t) ** 2
    return {"loss": one + 0.5 * two.mean(), "one": one, "two": two.mean()}


def test_a_recurrence_neither_grows_nor_fades():
    args = {"read": normal(8, 3 * D), "keep": normal(D, 3 * D)}, normal(10, 64, 8)
    scaled = amprewrite.unit_scale(recurrent, args)
    assert 0.4 < scaled(*args).std() < 1
    assert min(check_gradient_validity(scaled, args).values()) > 0.9999


def test_losses_that_are_returned_together_have_gradients_of_unit_scale():
    sizes = {"in": (D, 64), "out": (64, D), "one": (D, 4), "two": (D, 1)}
    params = {name: normal(*size) for name, size in sizes.items()}
    args = params, normal(512, D), jnp.arange(512) % 4, normal(512)
    scaled = amprewrite.unit_scale(losses, args)
    assert min(check_gradient_validity(scaled, args).values()) > 0.9999
    for name in ("loss", "one"):
        grads = jax.grad(lambda *given, name=name: scaled(*given)[name])(*args)
        assert 0.2 < grads["in"].std() < 5, name
