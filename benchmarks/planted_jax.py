"""The same architectures in JAX, and faults planted in the interpreter of plans."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax, nn

from amprewrite.frameworks.jaxpr.interpret.interpreter import Writer

WIDTH = 32
Weights = dict[str, Any]


def rms(x: Any) -> Any:
    """Normalise the last dimension by its root mean square."""
    return x * lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6)


def norm(x: Any) -> Any:
    """Normalise the last dimension to mean 0 and variance 1."""
    return (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-6)


def mlp(m: Weights, x: Any) -> Any:
    return nn.gelu(rms(nn.gelu(x @ m["a"]) @ m["b"]) @ m["c"]) @ m["d"]


def encoder(m: Weights, x: Any) -> Any:
    q = norm(x) @ m["a"]
    scores = nn.softmax(q @ q.transpose(0, 2, 1) / WIDTH**0.5)
    x = x + (scores @ q) @ m["d"]
    return x + norm(nn.gelu(x @ m["b"])) @ m["c"]


def decoder(m: Weights, x: Any) -> Any:
    angle = jnp.arange(x.shape[1])[:, None] * jnp.logspace(0, -1, WIDTH)
    q = rms(x) @ m["a"]
    q = q * jnp.cos(angle) + jnp.roll(q, WIDTH // 2, -1) * jnp.sin(angle)
    mask = jnp.triu(jnp.full((x.shape[1], x.shape[1]), -1e4), 1)
    scores = nn.softmax(q @ q.transpose(0, 2, 1) / WIDTH**0.5 + mask)
    x = x + scores @ q
    return x + rms(nn.silu(rms(x) @ m["c"]) * (x @ m["b"])) @ m["d"]


def convnet(m: Weights, x: Any) -> Any:
    image = x.reshape(-1, 4, 8, 8)
    made = lax.conv_general_dilated(nn.relu(image), m["conv"], (1, 1), "SAME")
    image = image + norm(made)
    pooled = image.reshape(-1, 4, 4, 2, 4, 2).mean((3, 5)).reshape(-1, WIDTH)
    return nn.relu(pooled @ m["c"]) @ m["d"]


def recurrent(m: Weights, x: Any) -> Any:
    h = jnp.zeros_like(x[:, 0])
    for t in range(3):
        h = jnp.tanh(x[:, t] @ m["a"] + rms((h + 1) @ m["b"]))
    return norm(h @ m["c"]) @ m["d"]


def mixer(m: Weights, x: Any) -> Any:
    tokens = jnp.pad(x.transpose(0, 2, 1), ((0, 0), (0, 0), (0, WIDTH - x.shape[1])))
    mixed = (tokens @ m["a"]).transpose(0, 2, 1)[:, : x.shape[1]]
    x = x + nn.gelu(norm(mixed))
    return x + nn.gelu(rms((x @ m["c"]) @ m["b"])) @ m["d"]


def autoencoder(m: Weights, x: Any) -> Any:
    hidden = jnp.tanh(rms(x @ m["b"]))
    mean, spread = hidden @ m["a"], jnp.exp(hidden @ m["c"] / 4)
    return nn.softplus(mean + spread) @ m["d"]


def graph(m: Weights, x: Any) -> Any:
    near = nn.sigmoid((x @ m["a"]) @ x.transpose(0, 2, 1))
    near = near / near.sum(-1, keepdims=True)
    return nn.relu(near @ (x @ m["c"])) @ m["d"] + rms(near @ (x @ m["b"]))


MODELS: dict[str, Callable[[Weights, Any], Any]] = {
    one.__name__: one
    for one in (
        mlp,
        encoder,
        decoder,
        convnet,
        recurrent,
        mixer,
        autoencoder,
        graph,
    )
}


def model_of(name: str, gain: float) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return a function and its arguments; the weights of a layer times ``gain``."""
    keys = jax.random.split(jax.random.key(0), 6)
    draw = jax.random.normal
    made = {n: draw(keys[i], (WIDTH, WIDTH)) / WIDTH**0.5 for i, n in enumerate("abcd")}
    made["conv"] = draw(keys[4], (4, 4, 3, 3)) / 6 * gain
    made["b"] = made["b"] * gain
    return MODELS[name], (made, draw(keys[5], (4, 8, WIDTH)))


@contextmanager
def planted(op: str, change: str, amount: float) -> Generator[None]:
    """Change what an op of converted programs computes, in the context.

    Args:
        op: Name of the op; of the reader of the cast for ``cast``.
        change: ``scale``, ``nan``, ``cast`` or ``lost float``.
        amount: The factor of ``scale``.
    """
    kind: Any = Writer  # its methods are replaced for a while
    plain, read = kind.plain, kind.as_read

    def changed(self: Writer, step: Any, env: Any) -> list[Any]:
        if step.name != op or change == "cast":
            return plain(self, step, env)
        if change == "lost float":
            env = {name: _low(value) for name, value in env.items()}
        made = plain(self, step, env)
        if change == "lost float":
            return [_low(value) for value in made]
        if change == "nan":
            return [value.at[(0,) * value.ndim].set(jnp.nan) for value in made]
        return [value * amount for value in made]

    def misread(self: Writer, name: str, index: int, value: Any) -> Any:
        found = read(self, name, index, value)
        if change != "cast" or name != op or index:
            return found
        return found.astype(jnp.float8_e5m2).astype(found.dtype)

    kind.plain, kind.as_read = changed, misread
    try:
        yield
    finally:
        kind.plain, kind.as_read = plain, read


def _low(x: Any) -> Any:
    floats = getattr(x, "dtype", None) == jnp.float32
    return x.astype(jnp.bfloat16).astype(jnp.float32) if floats else x
