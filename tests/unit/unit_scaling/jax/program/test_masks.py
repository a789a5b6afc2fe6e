"""A softmax with a mask has the factors of its rows."""

import functools

import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp
from jax import lax

import amprewrite
from amprewrite.unit_scaling.rules import masked_softmax

X, W = jnp.ones((2, 16, 8)), jnp.eye(8)
CAUSAL = masked_softmax(dict.fromkeys(range(1, 17), 1), 16).forward
FULL = masked_softmax({16: 1}, 16).forward


def causal(scores, _):
    return jnp.where(jnp.tril(jnp.ones((16, 16), bool)), scores, -1e9)


def added(scores, _):
    at = jnp.arange(16)
    return scores + jnp.where(at[:, None] >= at, 0.0, -jnp.inf)


def given(scores, mask):
    return jnp.where(mask, scores, -jnp.inf)


def function(w, x, mask, hide):
    scores = jnp.einsum("btd,bsd->bts", x @ w, x) / 8**0.5
    return jax.nn.softmax(hide(scores, mask)) @ x


def factor_of(scaled):
    (found,) = [
        s.forward for s in scaled.scales if " logits" in s.why and s.index is None
    ]
    return found


@pytest.mark.parametrize(
    ("hide", "factor"), [(causal, CAUSAL), (added, CAUSAL), (given, FULL)]
)
def test_rows_see_what_the_mask_leaves(hide, factor):
    mask = jnp.ones((16, 16), bool)
    scaled = amprewrite.unit_scale(functools.partial(function, hide=hide), (W, X, mask))
    assert factor_of(scaled) == pytest.approx(factor)


def layers(w, x, mask):
    def turn(x, _):
        return function(w, x, mask, given), None

    return lax.scan(turn, x, None, length=2)[0]


@pytest.mark.parametrize("run", [functools.partial(function, hide=given), layers])
def test_a_mask_that_is_given_is_that_of_the_example(run):
    scaled = amprewrite.unit_scale(run, (W, X, jnp.tril(jnp.ones((16, 16), bool))))
    assert factor_of(scaled) == pytest.approx(CAUSAL)
    jax.jit(scaled)(W, jnp.ones((5, 16, 8)), jnp.ones((16, 16), bool))
    assert factor_of(scaled) == pytest.approx(CAUSAL)


def test_a_call_without_a_mask_has_none():
    def run(w, x, mask=None):
        return function(w, x, mask, lambda s, m: s if m is None else given(s, m))

    scaled = amprewrite.unit_scale(run, (W, X, jnp.tril(jnp.ones((16, 16), bool))))
    scaled(W, X)
    assert factor_of(scaled) == pytest.approx(FULL)
