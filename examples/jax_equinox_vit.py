"""Train an Equinox vision transformer on scikit-learn's digits, in bf16 by one line."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from sklearn.datasets import load_digits

import amprewrite

WIDTH, HEADS, STEPS, BATCH = 64, 4, 60, 64


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
    """Sixteen patches of 2 x 2 pixels, two blocks, ten digits."""

    embed: eqx.nn.Linear
    position: jax.Array
    blocks: list[Block]
    head: eqx.nn.Linear

    def __init__(self, key: jax.Array) -> None:
        keys = jax.random.split(key, 5)
        self.embed = eqx.nn.Linear(4, WIDTH, key=keys[0])
        self.position = jax.random.normal(keys[1], (16, WIDTH)) * 0.1
        self.blocks = [Block(keys[2]), Block(keys[3])]
        self.head = eqx.nn.Linear(WIDTH, 10, key=keys[4])

    def __call__(self, image: jax.Array) -> jax.Array:
        """Return a score for each digit."""
        patches = image.reshape(4, 2, 4, 2).swapaxes(1, 2).reshape(16, 4)
        x = jax.vmap(self.embed)(patches) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(0))


def train(
    model: VisionTransformer, images: jax.Array, labels: jax.Array
) -> tuple[VisionTransformer, list[float]]:
    """Return the trained model and the loss of each step."""
    optimizer = optax.adam(2e-3)

    @eqx.filter_jit
    def step(model, state, x, y):  # noqa: ANN001, ANN202  # Equinox: any pytrees
        def loss(model):  # noqa: ANN001, ANN202
            scores = jax.vmap(model)(x)
            return optax.softmax_cross_entropy_with_integer_labels(scores, y).mean()

        value, grads = eqx.filter_value_and_grad(loss)(model)
        updates, state = optimizer.update(grads, state)
        return eqx.apply_updates(model, updates), state, value

    state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))
    losses = []
    for key in jax.random.split(jax.random.key(1), STEPS):
        batch = jax.random.choice(key, len(images), (BATCH,))
        model, state, value = step(model, state, images[batch], labels[batch])
        losses.append(float(value))
    return model, losses


def main() -> None:
    """Train both ways from the same start and compare."""
    pixels, digits = load_digits(return_X_y=True)
    images, labels = jnp.asarray(pixels / 16, jnp.float32), jnp.asarray(digits)
    full = VisionTransformer(jax.random.key(0))
    # An Equinox module with the same float32 leaves; everything else is as before.
    low = amprewrite.convert(full, policy="bf16", args=(images[0],))

    for name, model in (("float32", full), ("bf16", low)):
        trained, losses = train(model, images[:1500], labels[:1500])
        scores = jax.vmap(trained)(images[1500:])
        right = float((scores.argmax(1) == labels[1500:]).mean())
        end = sum(losses[-10:]) / 10
        print(f"{name}: loss {losses[0]:.3f} to {end:.3f}, test accuracy {right:.3f}")
    print(low.plan.summary().splitlines()[1])


if __name__ == "__main__":
    main()
