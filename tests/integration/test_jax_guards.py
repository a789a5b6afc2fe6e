"""Guards before logarithms, roots and inverse cosines, and masks before a softmax.

The program computes its guarded values by a product with the identity, so that every
difference from full precision comes from a guard that was rounded. The gradient that
JAX writes out is a program as well, with readers of its own.
"""

from types import SimpleNamespace

import pytest

import amprewrite

jax = pytest.importorskip("jax")

import jax.numpy as jnp
import numpy as np
from jax import lax

LEAST = float(np.finfo(np.float32).min)
SMALL, ROW = jnp.array(1e-8), jnp.full((4,), 1e-8)
MASK = np.triu(np.full((4, 4), LEAST, np.float32), 1)
PLACEMENTS = ("promote", "paint", "optimal")

pytestmark = pytest.mark.filterwarnings("ignore:rewritten 0 of")


def below_one(x):
    return jnp.log(1 - jnp.clip(x, max=1 - 1e-3))


def scanned(step):
    """Return a function that scans over the rows of its argument."""
    return lambda p: lax.scan(lambda c, r: (c, step(r @ p.w)), 0.0, p.a)[1]


NEXT_TO_ONE = {
    "clip": lambda p: below_one(p.a),
    "clip by an array": lambda p: jnp.log(1 - jnp.clip(p.a, max=1 - SMALL * 1e5)),
    "arccos": lambda p: jnp.arccos(jnp.clip(p.a, -1 + 1e-7, 1 - 1e-7)),
    "arctanh": lambda p: jnp.arctanh(lax.clamp(-1 + 1e-3, p.a, 1 - 1e-3)),
    "arccosh": lambda p: jnp.arccosh(jnp.maximum(p.a, 1 + 1e-4)),
    "logit": lambda p: jax.scipy.special.logit(
        jnp.clip(jax.nn.sigmoid(p.a * 9), 1e-4, 1 - 1e-4)
    ),
    "jit": lambda p: jax.jit(below_one)(p.a),
    "vmap": lambda p: jax.vmap(lambda r: below_one(r @ p.w))(p.a),
    "checkpoint": lambda p: jax.checkpoint(lambda r: below_one(r @ p.w))(p.a),
    "scan": scanned(below_one),
    "reader after a scan": lambda p: jnp.log(
        1 - scanned(lambda r: jnp.clip(r, max=1 - 1e-3))(p)
    ),
    "branch": lambda p: jnp.log(
        1 - lax.cond(p.x[0, 0] > 0, lambda r: jnp.clip(r, max=1 - 1e-3), jnp.sin, p.a)
    ),
    "second reader": lambda p: below_one(p.a) + p.a @ p.w,
    "output": lambda p: jnp.clip(p.a, 0, 1 - 1e-3) - 0.5,
}
"""Programs with a number that bfloat16 rounds to 1."""

NEXT_TO_ZERO = {
    "log": lambda p: jnp.log(jnp.maximum(p.a, 1e-8)),
    "log, an array": lambda p: jnp.log(jnp.maximum(p.a, SMALL)),
    "log, a row": lambda p: jnp.log(jnp.maximum(p.a, ROW)),
    "rsqrt": lambda p: lax.rsqrt(jnp.maximum(p.a, 1e-8)),
    "sqrt": lambda p: jnp.sqrt(jnp.maximum(p.a, 1e-8)),
    "div": lambda p: (p.x + 1) / jnp.maximum(p.a, 1e-8),
    "power": lambda p: jnp.maximum(p.a, 1e-5) ** -1,
    "where": lambda p: jnp.log(jnp.where(p.a > 0.5, p.a, 1e-8)),
    "select": lambda p: jnp.log(lax.select(p.a > 0.5, p.a, jnp.full_like(p.a, 1e-8))),
    "set": lambda p: jnp.log((p.a + 1).at[0].set(1e-8)),
    "set rows": lambda p: jnp.log((p.a + 1).at[jnp.array([0, 2])].set(1e-8)),
    "update": lambda p: jnp.log(
        lax.dynamic_update_slice(p.a + 1, jnp.full((1, 4), 1e-8), (0, 0))
    ),
    "sum": lambda p: jnp.log(jnp.maximum(p.a - 1, 1e-8).sum(0)),
}
"""Programs with a number that float16 rounds to 0."""

MASKS = {
    "where": lambda p: jnp.where(p.a > -9, -1e9, p.a),
    "closed over": lambda p: p.a * -30 + MASK,
    "set": lambda p: p.a.at[:, 0].set(-1e10),
    "set throughout": lambda p: (p.a @ p.w).at[:, :].set(LEAST),
}
"""Scores with a number that float16 has not; the softmax of them is asked for."""


def check(formula, policy, placement, *, slope=True):
    """Compare values, and gradients of the conversion and converted ones."""
    device = "cuda" if placement == "optimal" else None  # where low pays

    def convert(fun):
        return amprewrite.convert(fun, policy, placement=placement, device=device)

    def total(w, x):
        return formula(SimpleNamespace(a=x @ w, w=w, x=x)).sum()

    both = jax.value_and_grad(total, (0, 1))
    args = (jnp.eye(4), jnp.eye(4))
    value, full = both(*args)
    low_value, low = convert(both)(*args)
    assert jnp.allclose(low_value, value, rtol=2e-2, atol=1e-2)
    assert jnp.allclose(convert(total)(*args), value, rtol=2e-2, atol=1e-2)
    if slope:
        for gradients in (low, jax.grad(convert(total), (0, 1))(*args)):
            for one, two in zip(full, gradients, strict=True):
                size = jnp.linalg.norm(one)
                assert jnp.linalg.norm(one - two) <= 0.05 * size + 1e-3


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("name", NEXT_TO_ONE)
def test_a_number_next_to_one_is_not_rounded_to_it(name, placement):
    check(NEXT_TO_ONE[name], "bf16", placement)


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("name", NEXT_TO_ZERO)
def test_a_small_number_is_not_rounded_to_zero(name, placement):
    check(NEXT_TO_ZERO[name], "fp16", placement)


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("policy", ["bf16", "fp16"])
@pytest.mark.parametrize("name", MASKS)
def test_a_mask_saturates_before_a_softmax(name, policy, placement):
    def formula(p):
        return jnp.square(jax.nn.softmax(MASKS[name](p)))

    check(formula, policy, placement, slope=False)


@pytest.mark.parametrize("policy", ["bf16", "fp16"])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_mask_that_is_an_argument_saturates(placement, policy):
    def attention(x, mask):
        return jax.nn.softmax(x @ x.T + mask)

    x = jax.random.normal(jax.random.key(0), (3, 3))
    mask = jnp.full((3, 3), LEAST).at[1:, 0].set(0)  # row 0 is padded throughout
    low = amprewrite.convert(attention, policy, placement=placement)
    assert jnp.allclose(low(x, mask), attention(x, mask), atol=2e-2)


def test_a_product_with_a_guard_hands_over_its_accumulator_beside_a_low_reader():
    def fun(w, x):
        y = x @ w
        return below_one(y).sum() + jnp.tanh(y @ w).sum()

    args = (jnp.eye(4), jnp.eye(4))
    low = amprewrite.convert(fun, args=args)
    assert low.plan.by_op["dot_general"].results == ("float32",)
    assert "the bound 0.999 of min is 1" in low.plan.by_op["dot_general"].why
