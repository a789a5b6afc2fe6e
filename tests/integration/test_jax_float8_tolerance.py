"""Plans within a tolerance for policies with formats of 8 bits, in JAX."""

from typing import Any

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
import numpy as np

import amprewrite
from amprewrite.errors import UnsupportedError

# Casts of such small models do not pay.
pytestmark = pytest.mark.filterwarnings("ignore:rewritten 0 of")

FACTOR = 2.0
"""Largest ratio of measured to predicted errors, in both directions."""


def layer(w: Any, v: Any, x: Any) -> Any:
    """Two products around a softmax."""
    return jax.nn.softmax(x @ w) @ v


def test_the_error_of_8_bits_is_predicted_and_kept() -> None:
    draw = np.random.default_rng(0).standard_normal
    shapes = (16, 16), (16, 16), (8, 16)
    args = tuple(draw(shape, np.float32) / 2 for shape in shapes)
    with jax.enable_x64(True):
        wide = np.asarray(layer(*map(np.float64, args)))
    made = amprewrite.convert(layer, "fp8", args=args, tolerance=0.03)
    found = np.asarray(made(*args), np.float64) - wide
    error = float(np.linalg.norm(found) / np.linalg.norm(wide))
    predicted = made.plan.predicted_error
    assert error <= 0.03
    assert predicted / FACTOR <= error <= predicted * FACTOR
    assert len(made.plan.quantised) == 1
    assert "not in 8 bits" in "".join(d.why for d in made.plan.decisions)


def test_the_rounding_in_a_loop_is_predicted() -> None:
    """The body of a scan, and a custom rule around a product."""

    @jax.custom_vjp
    def product(x: Any, w: Any) -> Any:
        return x @ w

    product.defvjp(
        lambda x, w: (x @ w, (x, w)), lambda kept, g: (g @ kept[1].T, kept[0].T @ g)
    )

    def loop(w: Any, x: Any) -> Any:
        def turn(held: Any, _: Any) -> Any:
            return jnp.tanh(product(held, w)), None

        return jax.lax.scan(turn, x, None, length=3)[0]

    draw = np.random.default_rng(1).standard_normal
    args = draw((16, 16), np.float32) / 4, draw((4, 16), np.float32)
    made = amprewrite.convert(loop, "fp8", args=args, tolerance=0.5)
    wide = np.asarray(loop(*args), np.float64)
    found = np.asarray(made(*args), np.float64) - wide
    error = float(np.linalg.norm(found) / np.linalg.norm(wide))
    assert len(made.plan.quantised) == 1
    assert made.plan.predicted_error / FACTOR <= error
    assert error <= made.plan.predicted_error * FACTOR


def test_the_errors_of_gradients_are_predicted() -> None:
    """Those of both products of a layer, against float64."""
    draw = np.random.default_rng(0).standard_normal
    shapes = (16, 16), (16, 16), (8, 16)
    args = tuple(draw(shape, np.float32) / 2 for shape in shapes)

    def loss(run: Any, args: Any) -> Any:
        made = run(*args)
        target = np.random.default_rng(0).standard_normal(made.shape)
        return jnp.mean((made - target.astype(made.dtype)) ** 2)

    with jax.enable_x64(True):
        wide = tuple(map(np.float64, args))
        exact = jax.tree.map(np.asarray, jax.grad(lambda a: loss(layer, a))(wide))
    made = amprewrite.convert(layer, "fp8", args=args, tolerance=0.9, training=True)
    found = jax.grad(lambda a: loss(made, a))(tuple(map(jnp.asarray, args)))
    pairs = list(zip(found, exact, strict=True))
    errors = [np.linalg.norm(np.asarray(a, np.float64) - b) for a, b in pairs]
    sizes = [np.linalg.norm(b) for b in exact]
    error = float(np.linalg.norm(errors) / np.linalg.norm(sizes))
    predicted = made.plan.gradient_error
    assert len(made.plan.quantised) == 2
    assert predicted.error / FACTOR <= error <= predicted.error * FACTOR
    worst = max(a / b for a, b in zip(errors, sizes, strict=True))
    assert predicted.worst / FACTOR <= worst <= predicted.worst * FACTOR
    assert predicted.parameter in ("w", "v", "x")


def test_a_loop_without_a_reverse_derivative_is_refused_where_it_is_trained() -> None:
    def loop(w: Any, x: Any) -> Any:
        def turn(held: Any) -> Any:
            return held[0] + 1, jnp.tanh(held[1] @ w)

        return jax.lax.while_loop(lambda held: held[0] < 2, turn, (0, x))[1]

    args = np.ones((4, 4), np.float32), np.ones((2, 4), np.float32)
    with pytest.raises(UnsupportedError, match="leave training=None to bound"):
        amprewrite.convert(loop, "fp8", args=args, tolerance=0.5, training=True)
