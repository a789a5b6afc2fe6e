"""The vision transformer and the images of :mod:`benchmarks.mpx_vit`."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import mpx
import numpy as np
from sklearn.datasets import load_digits

SIDE, CHANNELS, PATCH, CLASSES = 32, 3, 4, 10

HELD_OUT = 297
"""Digits, of 1,797, on which the accuracy is counted."""

Mark = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Gives a function with a mark of full precision, or without."""


def unmarked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function`` as it is."""
    return function


def marked(half: Any) -> Mark:
    """Return what marks a function as mpx has it, with results in ``half``."""
    return lambda function: mpx.force_full_precision(function, half)


def each_token(layer: Callable[..., Any]) -> Callable[..., Any]:
    """Return a layer of vectors for images of tokens."""
    return jax.vmap(jax.vmap(layer))


class Block(eqx.Module):
    """Attention and a perceptron, each after a norm and around a shortcut."""

    norms: tuple[eqx.nn.LayerNorm, eqx.nn.LayerNorm]
    qkv: eqx.nn.Linear
    out: eqx.nn.Linear
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self, width: int, key: Any) -> None:
        keys = jax.random.split(key, 4)
        self.norms = eqx.nn.LayerNorm(width), eqx.nn.LayerNorm(width)
        self.qkv = eqx.nn.Linear(width, 3 * width, key=keys[0])
        self.out = eqx.nn.Linear(width, width, key=keys[1])
        self.up = eqx.nn.Linear(width, 4 * width, key=keys[2])
        self.down = eqx.nn.Linear(4 * width, width, key=keys[3])

    def __call__(self, x: Any, heads: int, full: Mark) -> Any:
        """Return tokens for tokens."""
        batch, tokens, width = x.shape
        y = each_token(self.qkv)(full(each_token(self.norms[0]))(x))
        q, k, v = jnp.moveaxis(y.reshape(batch, tokens, 3, heads, -1), 2, 0)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * (width // heads) ** -0.5
        weights = full(jax.nn.softmax)(scores)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape)
        x = x + each_token(self.out)(mixed)
        y = each_token(self.up)(full(each_token(self.norms[1]))(x))
        return x + each_token(self.down)(jax.nn.gelu(y))


class VisionTransformer(eqx.Module):
    """Patches of 4 x 4 pixels, blocks in one ``scan``, a class."""

    embed: eqx.nn.Linear
    position: Any
    blocks: Block
    norm: eqx.nn.LayerNorm
    head: eqx.nn.Linear

    def __init__(self, width: int, blocks: int, key: Any) -> None:
        keys = jax.random.split(key, 4)
        pixels, tokens = PATCH * PATCH * CHANNELS, (SIDE // PATCH) ** 2
        self.embed = eqx.nn.Linear(pixels, width, key=keys[0])
        self.position = jax.random.normal(keys[1], (tokens, width)) / 10
        block = partial(Block, width)
        self.blocks = eqx.filter_vmap(block)(jax.random.split(keys[2], blocks))
        self.norm = eqx.nn.LayerNorm(width)
        self.head = eqx.nn.Linear(width, CLASSES, key=keys[3])

    def __call__(self, images: Any, heads: int, full: Mark, *, again: bool) -> Any:
        """Return the scores of images; ``again`` keeps the inputs of blocks alone."""
        rows = SIDE // PATCH
        cut = images.reshape(-1, rows, PATCH, rows, PATCH * CHANNELS).swapaxes(2, 3)
        tokens = cut.reshape(len(images), rows * rows, -1)
        x = each_token(self.embed)(tokens) + self.position

        def body(x: Any, block: Block) -> tuple[Any, None]:
            return block(x, heads, full), None

        x, _ = jax.lax.scan(jax.checkpoint(body) if again else body, x, self.blocks)
        x = full(lambda x: each_token(self.norm)(x).mean(1))(x)
        return jax.vmap(self.head)(x)


@dataclass(frozen=True)
class Images:
    """Digits as images of 32 x 32 x 3, with their labels."""

    pixels: Any
    labels: Any

    def batches(self, batch: int, steps: int) -> Iterator[tuple[Any, Any]]:
        """Yield batches drawn from those that are not held out."""
        draws = np.random.default_rng(0)
        for _ in range(steps):
            rows = draws.integers(HELD_OUT, len(self.labels), batch)
            yield self.pixels[rows], self.labels[rows]


def digits() -> Images:
    """Return scikit-learn's digits, enlarged by repetition."""
    found: Any = load_digits()
    small = np.asarray(found.images, np.float32) / 16
    large = small.repeat(SIDE // 8, 1).repeat(SIDE // 8, 2)[..., None]
    return Images(large.repeat(CHANNELS, -1), np.asarray(found.target, np.int32))
