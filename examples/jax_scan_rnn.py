"""Train a recurrent network written in plain JAX: a loop with lax.scan, in bf16.

The carry keeps its dtype, and weights are cast inside the loop, so that their
gradients add up in float32 however long the sequence is.
"""

import jax
import jax.numpy as jnp
import optax
from jax import lax

import amprewrite

WIDTH, LENGTH, STEPS = 32, 64, 80


def init(key: jax.Array) -> dict[str, jax.Array]:
    """Return parameters."""
    keys = jax.random.split(key, 3)
    return {
        "inner": jax.random.orthogonal(keys[0], WIDTH),
        "inward": jax.random.normal(keys[1], (2, WIDTH)),
        "outward": jax.random.normal(keys[2], (WIDTH, 1)) / WIDTH**0.5,
    }


def predict(params: dict[str, jax.Array], inputs: jax.Array) -> jax.Array:
    """Return a number for each step of each sequence."""

    def turn(state: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        state = jnp.tanh(state @ params["inner"] + x @ params["inward"])
        return state, state @ params["outward"]

    start = jnp.zeros((inputs.shape[1], WIDTH))
    return lax.scan(turn, start, inputs)[1]


def train(predict, params, inputs, targets) -> list[float]:  # noqa: ANN001  # pytrees
    """Return the loss of each step."""
    optimizer = optax.adam(5e-3)

    @jax.jit
    def step(params, state):  # noqa: ANN001, ANN202
        def loss(params):  # noqa: ANN001, ANN202
            return ((predict(params, inputs) - targets) ** 2).mean()

        value, grads = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(grads, state)
        return optax.apply_updates(params, updates), state, value

    state, losses = optimizer.init(params), []
    for _ in range(STEPS):
        params, state, value = step(params, state)
        losses.append(float(value))
    return losses


def main() -> None:
    """Train both ways from the same start and compare."""
    # Each sequence is a wave of its own frequency; the target is its running mean.
    frequencies = jnp.linspace(0.1, 0.6, 32)[None, :]
    waves = jnp.sin(jnp.arange(LENGTH)[:, None] * frequencies)
    inputs = jnp.stack([waves, jnp.ones_like(waves)], axis=-1)
    count = jnp.arange(1, LENGTH + 1)[:, None]
    targets = (jnp.cumsum(waves, axis=0) / count)[..., None]

    params = init(jax.random.key(0))
    converted = amprewrite.convert(predict, policy="bf16", args=(params, inputs))
    for name, function in (("float32", predict), ("bf16", converted)):
        losses = train(function, params, inputs, targets)
        print(f"{name}: loss {losses[0]:.3f} to {losses[-1]:.4f}")
    dots = [d for d in converted.plan.decisions if d.canonical == "matmul"]
    print(f"contractions in the loop: {', '.join(d.precision for d in dots)}")


if __name__ == "__main__":
    main()
