"""Train an NNX network with batch norm on scikit-learn's digits, in bf16."""

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from sklearn.datasets import load_digits

import amprewrite

STEPS, BATCH = 60, 128


class Network(nnx.Module):
    """Two convolutions, each with batch norm."""

    def __init__(self, *, rngs: nnx.Rngs) -> None:
        self.first = nnx.Conv(1, 16, (3, 3), rngs=rngs)
        self.first_norm = nnx.BatchNorm(16, momentum=0.9, rngs=rngs)
        self.second = nnx.Conv(16, 32, (3, 3), strides=2, rngs=rngs)
        self.second_norm = nnx.BatchNorm(32, momentum=0.9, rngs=rngs)
        self.head = nnx.Linear(32, 10, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return a score for each digit."""
        x = nnx.relu(self.first_norm(self.first(x)))
        x = nnx.relu(self.second_norm(self.second(x)))
        return self.head(x.mean((1, 2)))


@nnx.jit
def step(
    model: nnx.Module, optimizer: nnx.Optimizer, x: jax.Array, y: jax.Array
) -> jax.Array:
    """Update ``model`` in place; return the loss."""

    def loss(model):  # noqa: ANN001, ANN202  # any callable module
        return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()

    value, grads = nnx.value_and_grad(loss)(model)
    optimizer.update(model, grads)
    return value


def train(model: nnx.Module, images: jax.Array, labels: jax.Array) -> list[float]:
    """Train ``model`` in place; return the loss of each step."""
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    losses = []
    for key in jax.random.split(jax.random.key(1), STEPS):
        batch = jax.random.choice(key, len(images), (BATCH,))
        losses.append(float(step(model, optimizer, images[batch], labels[batch])))
    return losses


def main() -> None:
    """Train both ways from the same start and compare."""
    pixels, digits = load_digits(return_X_y=True)
    images = jnp.asarray(pixels / 16, jnp.float32).reshape(-1, 8, 8, 1)
    labels = jnp.asarray(digits)
    for name in ("float32", "bf16"):
        model = Network(rngs=nnx.Rngs(0))
        # The converted module shares parameters and statistics with the model.
        trained = amprewrite.convert(model) if name == "bf16" else model
        losses = train(trained, images[:1500], labels[:1500])
        model.eval()
        right = float((model(images[1500:]).argmax(1) == labels[1500:]).mean())
        end = sum(losses[-10:]) / 10
        print(f"{name}: loss {losses[0]:.3f} to {end:.3f}, test accuracy {right:.3f}")
    print({str(x.dtype) for x in jax.tree.leaves(nnx.state(model))})


if __name__ == "__main__":
    main()
