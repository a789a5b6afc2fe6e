"""Train with optax: accumulated gradients, a schedule, steps that are not finite."""

import jax
import jax.numpy as jnp
import optax
from sklearn.datasets import load_digits

import amprewrite

STEPS = 40


def loss(
    params: dict[str, jax.Array], images: jax.Array, labels: jax.Array
) -> jax.Array:
    """Return the mean cross entropy of a perceptron on images, f32[n, 64]."""
    scores = jax.nn.relu(images @ params["w"] + params["b"]) @ params["v"]
    return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()


def main() -> None:
    """Train in bfloat16, with float32 parameters and optimizer state."""
    images, labels = map(jnp.asarray, load_digits(return_X_y=True))
    images = images.astype(jnp.float32) / 16
    one, two = jax.random.split(jax.random.key(0))
    params = {
        "w": jax.random.normal(one, (64, 64)) / 8,
        "b": jnp.zeros(64),
        "v": jax.random.normal(two, (64, 10)) / 8,
    }
    rate = optax.cosine_decay_schedule(3e-2, STEPS // 2)
    adamw = optax.inject_hyperparams(optax.adamw)(learning_rate=rate)
    every = optax.MultiSteps(adamw, 2).gradient_transformation()
    optimizer = optax.apply_if_finite(every, 3)
    converted = amprewrite.convert(loss)  # the loss, not the step

    @jax.jit
    def step(params, state, images, labels):  # noqa: ANN001, ANN202  # pytrees
        value, grads = jax.value_and_grad(converted)(params, images, labels)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    state, first = optimizer.init(params), loss(params, images, labels)
    for index in range(STEPS):
        part = slice(index % 4, None, 4)
        params, state, _ = step(params, state, images[part], labels[part])
    kept = {str(x.dtype) for x in jax.tree.leaves((params, state))}

    print(converted.plan.summary())
    print(f"loss {first:.2f} -> {loss(params, images, labels):.2f}")
    print("dtypes of parameters and state:", *sorted(kept))


if __name__ == "__main__":
    main()
