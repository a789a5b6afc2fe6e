"""A softmax with a mask that the program makes has the factors of its rows."""

import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp

import amprewrite
from amprewrite.unit_scaling.rules.softmax import masked_softmax

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


@pytest.mark.parametrize(
    ("hide", "factor"), [(causal, CAUSAL), (added, CAUSAL), (given, FULL)]
)
def test_rows_see_what_the_mask_leaves(hide, factor):
    def function(w, x, mask):
        scores = jnp.einsum("btd,bsd->bts", x @ w, x) / 8**0.5
        return jax.nn.softmax(hide(scores, mask)) @ x

    mask = jnp.ones((16, 16), bool)
    scales = amprewrite.unit_scale(function, (W, X, mask)).scales
    (found,) = [s.forward for s in scales if " logits" in s.why and s.index is None]
    assert found == pytest.approx(factor)
