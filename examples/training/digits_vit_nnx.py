"""Train a vision transformer on digits with flax.nnx, in bf16 by one line."""

from collections.abc import Iterator

import curves
import digits
import jax
import optax
from flax import nnx

from amprewrite.compat.mpx import cast_to_bfloat16
from amprewrite.training import jax as training

WIDTH, HEADS, BLOCKS = 32, 2, 1


class Block(nnx.Module):
    """Attention and a perceptron, each after a norm and around a shortcut."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.norms = nnx.List([nnx.LayerNorm(WIDTH, rngs=rngs) for _ in range(2)])
        self.attention = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs)
        self.up = nnx.Linear(WIDTH, 2 * WIDTH, rngs=rngs)
        self.down = nnx.Linear(2 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return tokens for tokens."""
        x = x + self.attention(self.norms[0](x))
        return x + self.down(nnx.gelu(self.up(self.norms[1](x))))


class VisionTransformer(nnx.Module):
    """Sixteen patches of 2 x 2 pixels, blocks, ten digits."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Linear(4, WIDTH, rngs=rngs)
        self.position = nnx.Param(jax.random.normal(rngs.params(), (16, WIDTH)) / 10)
        self.blocks = nnx.List([Block(rngs) for _ in range(BLOCKS)])
        self.head = nnx.Linear(WIDTH, 10, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        """Return a score for each digit, for each image."""
        patches = images.reshape(-1, 4, 2, 4, 2).swapaxes(2, 3).reshape(-1, 16, 4)
        x = self.embed(patches) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def train(kind: str, seed: int, steps: int) -> Iterator[float]:
    """Yield the loss of each step."""
    model = VisionTransformer(nnx.Rngs(seed))
    optimizer = nnx.Optimizer(model, optax.adamw(3e-3), wrt=nnx.Param)
    policy = "bf16" if kind == "converted" else None

    def loss(model: VisionTransformer, x: jax.Array, y: jax.Array) -> jax.Array:
        if kind == "everything cast":
            graph, state = nnx.split(model)
            state, x = cast_to_bfloat16((state, x))
            model = nnx.merge(graph, state)
        scores = model(x)
        return optax.softmax_cross_entropy_with_integer_labels(scores, y).mean()

    @nnx.jit
    def step(model, optimizer, x, y):  # noqa: ANN001, ANN202  # updated in place
        gradients = training.value_and_grad(loss, policy, loss_scale=None)
        value, _, finite, grads = gradients(model, x, y)
        training.optimizer_update(model, optimizer, None, grads, finite)
        return value

    for images, labels in digits.batches(seed, steps):
        yield float(step(model, optimizer, images, labels))


if __name__ == "__main__":
    curves.main(train, steps=300)
