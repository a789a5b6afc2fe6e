"""Save the weights that a converted NNX model trains with, by Orbax; restore them."""

import tempfile
from pathlib import Path

import jax.numpy as jnp
import optax
import orbax.checkpoint as ocp
from flax import nnx
from sklearn.datasets import load_digits

import amprewrite


def build(seed: int) -> nnx.Sequential:
    """Return a plain perceptron with batch norm; f32[n, 64] to f32[n, 10]."""
    rngs = nnx.Rngs(seed)
    return nnx.Sequential(
        nnx.Linear(64, 64, rngs=rngs),
        nnx.BatchNorm(64, rngs=rngs),
        nnx.relu,
        nnx.Linear(64, 10, rngs=rngs),
    )


def main() -> None:
    """Train a converted model, and restore its state in another one and a plain one."""
    digits, labels = load_digits(return_X_y=True)
    images = jnp.asarray(digits / 16, jnp.float32)
    model = amprewrite.convert(build(0))
    optimizer = nnx.Optimizer(model, optax.adamw(1e-2), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer, images, labels):  # noqa: ANN001, ANN202
        def loss(model):  # noqa: ANN001, ANN202
            scores = model(images)
            found = optax.softmax_cross_entropy_with_integer_labels(scores, labels)
            return found.mean()

        optimizer.update(model, nnx.grad(loss)(model))

    for part in range(20):
        step(model, optimizer, images[part::20], labels[part::20])
    model.eval()

    with (
        tempfile.TemporaryDirectory() as folder,
        ocp.StandardCheckpointer() as checkpointer,
    ):
        checkpointer.save(Path(folder) / "model", nnx.state(model))
        other, plain = amprewrite.convert(build(1)), build(2)
        for restored in (other, plain):
            found = checkpointer.restore(Path(folder) / "model", nnx.state(restored))
            nnx.update(restored, found)
            restored.eval()

    scores = other(images)
    print("converted, equal:", bool((scores == model(images)).all()))
    print(f"plain, differs by {jnp.abs(plain(images) - scores).max():.3f}")
    print(f"accuracy {(scores.argmax(-1) == labels).mean():.2f}")


if __name__ == "__main__":
    main()
