"""Train a vision transformer on digits with Equinox, in bf16 by one line."""

from collections.abc import Iterator

import curves
import digits
import equinox as eqx
import jax
import optax

from amprewrite.compat.mpx import cast_to_bfloat16
from amprewrite.training import jax as training

WIDTH, HEADS, BLOCKS = 32, 2, 1


class Block(eqx.Module):
    """Attention and a perceptron, each after a norm and around a shortcut."""

    attention: eqx.nn.MultiheadAttention
    mlp: eqx.nn.MLP
    norms: tuple[eqx.nn.LayerNorm, eqx.nn.LayerNorm]

    def __init__(self, key: jax.Array) -> None:
        first, second = jax.random.split(key)
        self.attention = eqx.nn.MultiheadAttention(HEADS, WIDTH, key=first)
        self.mlp = eqx.nn.MLP(WIDTH, WIDTH, 2 * WIDTH, 1, jax.nn.gelu, key=second)
        self.norms = eqx.nn.LayerNorm(WIDTH), eqx.nn.LayerNorm(WIDTH)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return tokens for tokens."""
        y = jax.vmap(self.norms[0])(x)
        x = x + self.attention(y, y, y)
        return x + jax.vmap(self.mlp)(jax.vmap(self.norms[1])(x))


class VisionTransformer(eqx.Module):
    """Sixteen patches of 2 x 2 pixels, blocks, ten digits."""

    embed: eqx.nn.Linear
    position: jax.Array
    blocks: list[Block]
    head: eqx.nn.Linear

    def __init__(self, key: jax.Array) -> None:
        keys = jax.random.split(key, 3 + BLOCKS)
        self.embed = eqx.nn.Linear(4, WIDTH, key=keys[0])
        self.position = jax.random.normal(keys[1], (16, WIDTH)) / 10
        self.head = eqx.nn.Linear(WIDTH, 10, key=keys[2])
        self.blocks = [Block(key) for key in keys[3:]]

    def __call__(self, image: jax.Array) -> jax.Array:
        """Return a score for each digit."""
        patches = image.reshape(4, 2, 4, 2).swapaxes(1, 2).reshape(16, 4)
        x = jax.vmap(self.embed)(patches) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(0))


def train(kind: str, seed: int, steps: int) -> Iterator[float]:
    """Yield the loss of each step."""
    model = VisionTransformer(jax.random.key(seed))
    optimizer = optax.adamw(3e-3)
    state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))
    policy = "bf16" if kind == "converted" else None

    def loss(model: VisionTransformer, x: jax.Array, y: jax.Array) -> jax.Array:
        if kind == "everything cast":
            model, x = cast_to_bfloat16((model, x))
        scores = jax.vmap(model)(x)
        return optax.softmax_cross_entropy_with_integer_labels(scores, y).mean()

    @eqx.filter_jit
    def step(model, state, x, y):  # noqa: ANN001, ANN202  # Equinox: any pytrees
        gradients = training.filter_value_and_grad(loss, policy, loss_scale=None)
        value, _, finite, grads = gradients(model, x, y)
        return *training.optimizer_update(model, optimizer, state, grads, finite), value

    for images, labels in digits.batches(seed, steps):
        model, state, value = step(model, state, images, labels)
        yield float(value)


if __name__ == "__main__":
    curves.main(train, steps=300)
