"""What layers are made of, and operations that low precision must leave alone."""

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
from jax import lax

from tests.jax_programs import Case, keeps_its_promises, normal, weight

pytestmark = pytest.mark.usefixtures("strict_jax")

X = normal(4, 16)
W = weight(16, 16)
V = weight(16, 16, seed=2)
IMAGE = normal(2, 6, 6, 3)
KERNEL = normal(3, 3, 3, 8, seed=4, scale=27**-0.5)
HEADS = tuple(normal(2, 5, 2, 8, seed=s) for s in range(3))
LABELS = jnp.array([1, 0, 3, 15])
SPACED = jnp.asarray(jnp.arange(64) * 37 % 64, jnp.float32).reshape(4, 16)
KEY = jax.random.key(0)


def attention(q, k, v, **options):
    return jax.nn.dot_product_attention(q, k, v, **options)


def attention_by_hand(w, x, keep):
    q, k, v = (jnp.reshape(x @ w * s, (2, 2, 2, 8)) for s in (1.0, 2.0, 0.5))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(8.0)
    scores = jnp.where(keep, scores, jnp.finfo(jnp.float32).min)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)


def layer_norm(w, scale, bias, x):
    h = x @ w
    mean = h.mean(-1, keepdims=True)
    wide = (h - mean) * lax.rsqrt(h.var(-1, keepdims=True) + 1e-6)
    return (wide * scale + bias) @ w


def cross_entropy(w, x, labels):
    optax = pytest.importorskip("optax")
    losses = optax.softmax_cross_entropy_with_integer_labels(x @ w, labels)
    return losses.mean()


def dropout(w, x, key):
    keep = jax.random.bernoulli(key, 0.8, x.shape)
    return jnp.where(keep, x @ w / 0.8, 0.0) @ w


def trees(tree):
    return {"out": [tree["x"] @ tree["w"], None], "n": tree["n"] + 1, "x": tree["x"]}


def spectrum(w, x):
    return jnp.abs(jnp.fft.fft(x @ w)) @ w


def solved(w, x):
    a = jnp.eye(16) * 4.0 + w @ w.T
    return jnp.linalg.solve(a, (x @ w).T).T @ w


def placed(w, x):
    h = x @ w
    h = h.at[1:3].set(h[:2] * 2.0)
    h = h.at[jnp.array([0, 0, 2])].add(1.0)
    return lax.dynamic_update_slice(h, h[:1], (2, 0)) @ w


def ordered(w, x):
    values, index = lax.top_k(x @ w, 3)
    return jnp.sort(x @ w, axis=-1), values, index


def scaled(w, x, scale):
    return jnp.tanh(x @ w) * scale * jnp.float32(2.0) + 1e-3


def scoped(w, x):
    with jax.named_scope("outer"), jax.named_scope("inner"):
        return jnp.tanh(x @ w)


def pooled(image, kernel):
    y = lax.conv_general_dilated(
        image, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    top = lax.reduce_window(y, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    mean = lax.reduce_window(y, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return top, mean / 4.0


def strided(image, kernel):
    kernel = jnp.concatenate([kernel, kernel], 2)[:, :, :3]
    return lax.conv_general_dilated(
        image,
        kernel,
        (2, 1),
        [(1, 0), (2, 1)],
        lhs_dilation=(1, 2),
        rhs_dilation=(2, 1),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )


def grouped(image, kernel):
    return lax.conv_general_dilated(
        image[..., :2],
        kernel[:, :, :1],
        (1, 1),
        "SAME",
        feature_group_count=2,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )


def recommended(table, w, ids):
    return table[ids].mean(1) @ w


def unused(w, x):
    return x, w, jnp.zeros(3), x @ w


CASES = {
    "dot": Case(jnp.dot, (X, W)),
    "matvec": Case(lambda w, x: w @ x, (W, X[0])),
    "einsum": Case(
        lambda a, b, c: jnp.einsum("bhqd,bkhd,kq->hb", a, b, c),
        (normal(2, 3, 4, 5), normal(2, 6, 3, 5, seed=1), normal(6, 4, seed=2)),
    ),
    "batched matmul": Case(jnp.matmul, (normal(2, 3, 4, 8), normal(2, 3, 8, 5))),
    "tensordot": Case(
        lambda a, b: jnp.tensordot(a, b, ((0, 2), (1, 0))),
        (normal(3, 4, 5), normal(5, 3, 6, seed=1)),
    ),
    "transposed": Case(lambda a, b: jnp.einsum("ki,kj->ij", a, b), (X, X * 2)),
    "attention": Case(attention, HEADS),
    "causal attention": Case(lambda *a: attention(*a, is_causal=True), HEADS),
    "attention by hand": Case(
        attention_by_hand, (W, X, jnp.tril(jnp.ones((2, 2), bool)))
    ),
    "layer norm": Case(layer_norm, (W, jnp.ones(16), jnp.zeros(16), X)),
    "logsumexp": Case(lambda w, x: jax.nn.logsumexp(x @ w, -1), (W, X)),
    "log softmax": Case(lambda w, x: jax.nn.log_softmax(x @ w), (W, X)),
    "cross entropy": Case(cross_entropy, (W, X, LABELS)),
    "gelu and silu": Case(lambda w, x: jax.nn.silu(jax.nn.gelu(x @ w) @ w), (W, X)),
    "softplus": Case(lambda w, x: jax.nn.softplus(x @ w) @ w, (W, X)),
    "dropout": Case(dropout, (W, X, KEY), vmap=False),
    "embedding": Case(recommended, (normal(9, 16), W, jnp.array([[1, 2], [3, 1]]))),
    "scatter": Case(placed, (W, X)),
    "order": Case(ordered, (jnp.eye(16), SPACED)),
    "cumulative": Case(lambda w, x: jnp.cumsum(x @ w, 1) / 16.0 @ w, (W, X)),
    "cumlogsumexp": Case(lambda w, x: lax.cumlogsumexp(x @ w, axis=1), (W, X)),
    "convolution and pooling": Case(pooled, (IMAGE, KERNEL)),
    "strided convolution": Case(strided, (IMAGE, KERNEL)),
    "grouped convolution": Case(grouped, (IMAGE, KERNEL)),
    "fft": Case(spectrum, (W, X)),
    "solve": Case(solved, (W, X)),
    "scalars": Case(scaled, (W, X, jnp.float32(0.5))),
    "named scopes": Case(scoped, (W, X)),
    "trees with None": Case(trees, ({"x": X, "w": W, "n": jnp.int32(1)},)),
    "ragged dot": Case(
        lax.ragged_dot,
        (X, normal(2, 16, 8, seed=5, scale=0.25), jnp.array([3, 1])),
        vmap=False,
    ),
    "outputs that are inputs": Case(unused, (W, X)),
    "integers": Case(
        lambda w, n: (jnp.arange(16.0) @ w, n * n, n // 2), (W, jnp.int32(5))
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_construct_keeps_its_promises(name):
    keeps_its_promises(CASES[name])


HALF = ("attention", "layer norm", "cross entropy", "convolution and pooling")


@pytest.mark.parametrize("name", HALF)
def test_a_construct_keeps_its_promises_in_float16(name):
    keeps_its_promises(CASES[name], "fp16", (4e-3, 8e-3))
