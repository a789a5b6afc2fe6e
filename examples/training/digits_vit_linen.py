"""Train a vision transformer on digits with flax.linen, in bf16 by one line."""

from collections.abc import Iterator
from typing import Any

import curves
import digits
import flax.linen as nn
import jax
import numpy as np
import optax

from amprewrite.compat.mpx import cast_to_bfloat16
from amprewrite.training import jax as training

WIDTH, HEADS, BLOCKS = 32, 2, 1


class Block(nn.Module):
    """Attention and a perceptron, each after a norm and around a shortcut."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return tokens for tokens."""
        x = x + nn.MultiHeadDotProductAttention(num_heads=HEADS)(nn.LayerNorm()(x))
        y = nn.gelu(nn.Dense(2 * WIDTH)(nn.LayerNorm()(x)))
        return x + nn.Dense(WIDTH)(y)


class VisionTransformer(nn.Module):
    """Sixteen patches of 2 x 2 pixels, blocks, ten digits."""

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """Return a score for each digit, for each image."""
        patches = images.reshape(-1, 4, 2, 4, 2).swapaxes(2, 3).reshape(-1, 16, 4)
        x = nn.Dense(WIDTH)(patches)
        x = x + self.param("position", nn.initializers.normal(0.1), (16, WIDTH))
        for _ in range(BLOCKS):
            x = Block()(x)
        return nn.Dense(10)(x.mean(1))


def train(kind: str, seed: int, steps: int) -> Iterator[float]:
    """Yield the loss of each step."""
    model: Any = VisionTransformer()  # linen's types are wider than what it gives
    variables = model.init(jax.random.key(seed), np.zeros((1, 8, 8), np.float32))
    optimizer = optax.adamw(3e-3)
    state = optimizer.init(variables)
    policy = "bf16" if kind == "converted" else None

    def loss(variables, x, y):  # noqa: ANN001, ANN202  # pytrees
        if kind == "everything cast":
            variables, x = cast_to_bfloat16((variables, x))
        scores = model.apply(variables, x)
        return optax.softmax_cross_entropy_with_integer_labels(scores, y).mean()

    @jax.jit
    def step(variables, state, x, y):  # noqa: ANN001, ANN202
        gradients = training.value_and_grad(loss, policy, loss_scale=None)
        value, _, finite, grads = gradients(variables, x, y)
        updated = training.optimizer_update(variables, optimizer, state, grads, finite)
        return *updated, value

    for images, labels in digits.batches(seed, steps):
        variables, state, value = step(variables, state, images, labels)
        yield float(value)


if __name__ == "__main__":
    curves.main(train, steps=300)
