"""Rules of softmax, attention and cross entropy agree with samples."""

import math

import numpy as np
import pytest

from amprewrite.errors import UnitScalingError
from amprewrite.unit_scaling import rules


def rms(x):
    return np.sqrt(np.mean(np.square(x)))


def attention(inputs, gradient, mult, *, causal):
    """Output and gradients of unscaled attention."""
    query, key, value = inputs
    size = mult / query.shape[-1]
    logits = size * query @ key.swapaxes(-1, -2)
    if causal:
        logits = np.where(np.tri(*logits.shape[-2:], dtype=bool), logits, -np.inf)
    p = np.exp(logits - logits.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    d_p = gradient @ value.swapaxes(-1, -2)
    d_logits = p * (d_p - (p * d_p).sum(axis=-1, keepdims=True))
    return {
        "forward": p @ value,
        "query": size * d_logits @ key,
        "key": size * d_logits.swapaxes(-1, -2) @ query,
        "value": p.swapaxes(-1, -2) @ gradient,
    }


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mult", [0.25, 1.0, 4.0])
def test_attention_and_its_gradients_have_unit_scale(mult, causal):
    rng = np.random.default_rng(0)
    queries, keys, head, width = 48, 80, 64, 32
    extent = {"queries": queries, "keys": keys, "head": head, "value_head": width}
    shapes = [(queries, head), (keys, head), (keys, width), (queries, width)]
    *inputs, gradient = (rng.standard_normal((128, *shape)) for shape in shapes)
    found = rules.attention(**extent, mult=mult, causal=causal)
    factors = {"forward": found.forward, **found.backward}
    sampled = attention(inputs, gradient, mult, causal=causal)
    scales = {name: rms(x) * factors[name] for name, x in sampled.items()}
    assert scales == pytest.approx(dict.fromkeys(scales, 1.0), abs=0.02)


def test_long_causal_rows_are_interpolated_closely(monkeypatch):
    extent = {"queries": 300, "keys": 300, "head": 16, "causal": True}
    shown = rules.attention(**extent)
    rules._row_sums.cache_clear()
    monkeypatch.setattr(rules, "EXACT_ROWS", 300)
    exact = rules.attention(**extent)
    rules._row_sums.cache_clear()
    assert shown.forward == pytest.approx(exact.forward, rel=1e-6)
    assert shown.backward == pytest.approx(exact.backward, rel=1e-6)


def test_dropout_takes_its_share():
    plain = rules.attention(queries=8, keys=8, head=4)
    dropped = rules.attention(queries=8, keys=8, head=4, p=0.75)
    assert dropped.forward == pytest.approx(plain.forward / 2)
    assert dropped.backward["key"] == pytest.approx(plain.backward["key"] / 2)


def test_a_sharp_softmax_needs_a_smaller_factor():
    even = rules.softmax(size=1024, mult=0.01)
    assert even.forward == pytest.approx(1024, rel=1e-3)
    assert rules.softmax(size=1024, mult=64.0).forward < 1024**0.5 * 1.2


def test_cross_entropy_of_even_logits_is_the_published_rule():
    found = rules.cross_entropy(classes=100, batch=8, mult=1e-6)
    rule = 8 * 100 / math.sqrt(99) / 1e-6
    assert found.backward["input"] == pytest.approx(rule, rel=1e-6)
    assert found.forward == 1.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rules.softmax(size=1), "size=1 is 1"),
        (lambda: rules.cross_entropy(classes=1, batch=4), "classes=1"),
        (lambda: rules.attention(queries=4, keys=1, head=2), "keys=1 has no"),
        (
            lambda: rules.attention(queries=1, keys=9, head=2, causal=True),
            "has no gradient",
        ),
    ],
)
def test_what_is_certain_has_no_rule(call, message):
    with pytest.raises(UnitScalingError, match=message):
        call()


@pytest.mark.parametrize("hidden", [-np.inf, np.finfo(np.float32).min, -1e4])
def test_a_mask_leaves_the_rows_that_it_shows(hidden):
    rng = np.random.default_rng(0)
    causal = np.tril(np.ones((32, 32), bool))
    logits = np.where(causal, rng.standard_normal((2**10, 32, 32)), hidden)
    visible = rules.visible_logits(logits[:3], -1)
    assert visible == dict.fromkeys(range(1, 33), 3)
    found = rules.masked_softmax(visible, 32)
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    g = rng.standard_normal(p.shape)
    slopes = p * (g - (p * g).sum(-1, keepdims=True))
    for factor, values in ((found.forward, p), (found.backward["input"], slopes)):
        assert factor * np.sqrt((values**2).mean()) == pytest.approx(1, rel=0.01)
    whole, plain = rules.masked_softmax({32: 9}, 32), rules.softmax(size=32)
    assert whole.forward == pytest.approx(plain.forward)
    assert whole.backward == pytest.approx(plain.backward)


def test_a_row_that_is_hidden_as_a_whole_sees_all():
    assert rules.visible_logits(np.full((2, 4), -np.inf), 1) == {4: 2}


def test_a_mask_that_leaves_one_number_has_no_gradient():
    with pytest.raises(UnitScalingError, match="mask that leaves one number"):
        rules.masked_softmax({1: 8}, 8)
