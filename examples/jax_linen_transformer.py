"""Train a small linen language model in bf16, with one module kept in float32."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

import amprewrite

TEXT = "the quick brown fox jumps over the lazy dog and runs away from the dog. " * 8
LETTERS = sorted(set(TEXT))
LENGTH, WIDTH, STEPS = 32, 64, 40


class Block(nn.Module):
    """Attention to what came before, and a perceptron."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return tokens for tokens."""
        mask = nn.make_causal_mask(x[..., 0])
        attention = nn.MultiHeadDotProductAttention(num_heads=4, name="attention")
        x = x + attention(nn.LayerNorm()(x), mask=mask)
        y = nn.gelu(nn.Dense(2 * WIDTH, name="up")(nn.LayerNorm()(x)))
        return x + nn.Dense(WIDTH, name="down")(y)


class Transformer(nn.Module):
    """Predicts the next letter."""

    @nn.compact
    def __call__(self, ids: jax.Array) -> jax.Array:
        """Return a score for each letter that may follow."""
        x = nn.Embed(len(LETTERS), WIDTH)(ids)
        x = x + self.param("position", nn.initializers.normal(0.1), (LENGTH, WIDTH))
        for _ in range(2):
            x = Block()(x)
        return nn.Dense(len(LETTERS), name="head")(nn.LayerNorm()(x))


def train(model: Any, variables: Any, ids: jax.Array) -> list[float]:  # noqa: ANN401  # linen's types
    """Train from ``variables``; return the loss of each step."""
    optimizer = optax.adam(3e-3)

    @jax.jit
    def step(params, state):  # noqa: ANN001, ANN202  # pytrees
        def loss(params):  # noqa: ANN001, ANN202
            scores = model.apply({"params": params}, ids[:, :-1])
            return optax.softmax_cross_entropy_with_integer_labels(
                scores, ids[:, 1:]
            ).mean()

        value, grads = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(grads, state)
        return optax.apply_updates(params, updates), state, value

    params, losses = variables["params"], []
    state = optimizer.init(params)
    for _ in range(STEPS):
        params, state, value = step(params, state)
        losses.append(float(value))
    return losses


def main() -> None:
    """Train both ways from the same start and compare."""
    letters = [LETTERS.index(letter) for letter in TEXT]
    starts = range(0, len(letters) - LENGTH - 1, 16)
    ids = jnp.asarray([letters[i : i + LENGTH + 1] for i in starts])
    model = Transformer()
    variables = model.init(jax.random.key(0), ids[:, :-1])

    # init gives the same variables as before; apply runs by the plan.
    converted = amprewrite.convert(
        model,
        policy="bf16",
        args=(variables, ids[:, :-1]),
        overrides=[{"path": "head", "class": "deny", "why": "scores are compared"}],
    )
    for name, trained in (("float32", model), ("bf16", converted)):
        losses = train(trained, variables, ids)
        print(f"{name}: loss {losses[0]:.3f} to {losses[-1]:.3f}")
    dots = [d for d in converted.plan.decisions if d.canonical == "matmul"]
    for path in ("Block_0.attention.query", "head"):
        print(*(f"{d.path} runs in {d.precision}" for d in dots if d.path == path))


if __name__ == "__main__":
    main()
