"""Plans within a tolerance for policies with formats of 8 bits, in JAX."""

from typing import Any

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
import numpy as np

import amprewrite

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
    counts: list[int] = []
    for tolerance in (0.5, 0.03):
        made = amprewrite.convert(layer, "fp8", args=args, tolerance=tolerance)
        found = np.asarray(made(*args), np.float64) - wide
        error = float(np.linalg.norm(found) / np.linalg.norm(wide))
        predicted = made.plan.predicted_error
        counts.append(len(made.plan.quantised))
        assert error <= tolerance
        assert predicted / FACTOR <= error <= predicted * FACTOR
    assert counts == [2, 1]
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
