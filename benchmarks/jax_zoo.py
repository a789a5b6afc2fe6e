"""Small JAX models as plain functions, with weights of unit gain: no library needed.

A case is ``(function, (params, *inputs))``. Weights are normal with variance
``1 / inputs``, so that values keep their size and an error is not drowned in biases.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

Case = tuple[Callable[..., Any], tuple[Any, ...]]


class Size(NamedTuple):
    """Extents of a case."""

    width: int = 64
    heads: int = 4
    layers: int = 2
    length: int = 16
    batch: int = 4
    side: int = 16


TINY = Size()


class _Draws:
    """Draws weights one after the other."""

    def __init__(self, seed: int) -> None:
        self.key = jax.random.key(seed)

    def normal(self, *shape: int, gain: float = 1.0) -> Any:
        self.key, key = jax.random.split(self.key)
        return jax.random.normal(key, shape) * gain

    def linear(self, inputs: int, outputs: int) -> dict[str, Any]:
        weight = self.normal(inputs, outputs, gain=inputs**-0.5)
        return {"w": weight, "b": self.normal(outputs, gain=0.1)}

    def norm(self, width: int) -> dict[str, Any]:
        scale = 1 + self.normal(width, gain=0.1)
        return {"scale": scale, "bias": self.normal(width, gain=0.1)}


def linear(p: Any, x: Any) -> Any:
    """Return ``x @ w + b``."""
    return x @ p["w"] + p["b"]


def layer_norm(p: Any, x: Any) -> Any:
    """Normalise over the last dimension, by ``mean(x*x) - mean(x)**2`` as Flax does."""
    mean = x.mean(-1, keepdims=True)
    variance = (x * x).mean(-1, keepdims=True) - mean * mean
    return (x - mean) * lax.rsqrt(variance + 1e-6) * p["scale"] + p["bias"]


def attention(p: Any, x: Any, heads: int, mask: Any = None) -> Any:
    """Return self-attention over the second-last dimension."""
    batch, length, width = x.shape
    qkv = linear(p["qkv"], x).reshape(batch, length, 3, heads, width // heads)
    q, k, v = (qkv[:, :, i].transpose(0, 2, 1, 3) for i in range(3))
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) * (width // heads) ** -0.5
    if mask is not None:
        scores = jnp.where(mask, scores, jnp.finfo(scores.dtype).min)
    mixed = jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores), v)
    mixed = mixed.transpose(0, 2, 1, 3).reshape(batch, length, width)
    return linear(p["out"], mixed)


def block(p: Any, x: Any, heads: int, mask: Any = None) -> Any:
    """Return what a pre-norm transformer block makes of ``x``."""
    x = x + attention(p["attention"], layer_norm(p["norm1"], x), heads, mask)
    hidden = jax.nn.gelu(linear(p["up"], layer_norm(p["norm2"], x)))
    return x + linear(p["down"], hidden)


def _block(draws: _Draws, width: int) -> dict[str, Any]:
    return {
        "norm1": draws.norm(width),
        "attention": {
            "qkv": draws.linear(width, 3 * width),
            "out": draws.linear(width, width),
        },
        "norm2": draws.norm(width),
        "up": draws.linear(width, 4 * width),
        "down": draws.linear(4 * width, width),
    }


def mlp(size: Size) -> Case:
    """Return a perceptron of three layers."""
    draws = _Draws(0)
    sides = (size.width, 4 * size.width, 4 * size.width, size.width)
    params = [draws.linear(*pair) for pair in pairwise(sides)]

    def run(params: Any, x: Any) -> Any:
        for p in params[:-1]:
            x = jax.nn.relu(linear(p, x))
        return linear(params[-1], x)

    return run, (params, draws.normal(size.batch * size.length, size.width))


def transformer_block(size: Size) -> Case:
    """Return one causal transformer block."""
    draws = _Draws(1)
    params = _block(draws, size.width)
    mask = jnp.tril(jnp.ones((size.length, size.length), bool))

    def run(params: Any, x: Any) -> Any:
        return block(params, x, size.heads, mask)

    return run, (params, draws.normal(size.batch, size.length, size.width))


def transformer(size: Size) -> Case:
    """Return a decoder: embedding, causal blocks written out, logits of its tokens."""
    draws, vocabulary = _Draws(2), 128
    params = {
        "tokens": draws.normal(vocabulary, size.width),
        "places": draws.normal(size.length, size.width, gain=0.1),
        "blocks": [_block(draws, size.width) for _ in range(size.layers)],
        "norm": draws.norm(size.width),
        "head": draws.normal(size.width, vocabulary, gain=size.width**-0.5),
    }
    mask = jnp.tril(jnp.ones((size.length, size.length), bool))
    key = jax.random.key(3)
    ids = jax.random.randint(key, (size.batch, size.length), 0, vocabulary)

    def run(params: Any, ids: Any) -> Any:
        x = params["tokens"][ids] + params["places"]
        for p in params["blocks"]:
            x = block(p, x, size.heads, mask)
        return layer_norm(params["norm"], x) @ params["head"]

    return run, (params, ids)


def vit(size: Size) -> Case:
    """Return a vision transformer: patches by a convolution, mean over all places."""
    draws, patch, side, classes = _Draws(4), 4, size.side, 10
    params = {
        "patch": draws.normal(patch, patch, 3, size.width, gain=(patch**2 * 3) ** -0.5),
        "places": draws.normal((side // patch) ** 2, size.width, gain=0.1),
        "blocks": [_block(draws, size.width) for _ in range(size.layers)],
        "norm": draws.norm(size.width),
        "head": draws.linear(size.width, classes),
    }

    def run(params: Any, images: Any) -> Any:
        x = lax.conv_general_dilated(
            images,
            params["patch"],
            (patch, patch),
            "VALID",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        x = x.reshape(x.shape[0], -1, x.shape[-1]) + params["places"]
        for p in params["blocks"]:
            x = block(p, x, size.heads)
        return linear(params["head"], layer_norm(params["norm"], x).mean(1))

    return run, (params, draws.normal(size.batch, side, side, 3))


def gru(size: Size) -> Case:
    """Return a gated recurrent unit over time, by ``lax.scan``."""
    draws = _Draws(5)
    params = {
        "input": draws.linear(size.width, 3 * size.width),
        "hidden": draws.linear(size.width, 3 * size.width),
        "head": draws.linear(size.width, 10),
    }

    def turn(params: Any, h: Any, x: Any) -> tuple[Any, Any]:
        given = jnp.split(linear(params["input"], x), 3, -1)
        held = jnp.split(linear(params["hidden"], h), 3, -1)
        reset = jax.nn.sigmoid(given[0] + held[0])
        keep = jax.nn.sigmoid(given[1] + held[1])
        new = jnp.tanh(given[2] + reset * held[2])
        h = (1 - keep) * new + keep * h
        return h, linear(params["head"], h)

    def run(params: Any, x: Any) -> Any:
        start = jnp.zeros((x.shape[1], size.width), x.dtype)
        return lax.scan(lambda h, row: turn(params, h, row), start, x)[1]

    return run, (params, draws.normal(2 * size.length, size.batch, size.width))


ZOO: dict[str, Callable[[Size], Case]] = {
    "gru": gru,
    "mlp": mlp,
    "transformer": transformer,
    "transformer_block": transformer_block,
    "vit": vit,
}
"""Builders by name."""


def build(name: str, size: Size = TINY) -> Case:
    """Return a case."""
    return ZOO[name](size)
