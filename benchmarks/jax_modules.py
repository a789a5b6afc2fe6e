"""Models of Equinox, linen and NNX as cases of the JAX zoo: ``(function, arrays)``.

What is measured does not depend on the wrapper, so each is a function of its arrays;
that modules stay modules is for the tests.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx

from benchmarks.jax_zoo import Case, Size


class Attention(eqx.Module):
    """Attention and a perceptron, each after a norm and around a shortcut."""

    attention: Any
    mlp: Any
    norms: tuple[Any, Any]

    def __init__(self, width: int, heads: int, key: Any) -> None:
        first, second = jax.random.split(key)
        self.attention = eqx.nn.MultiheadAttention(heads, width, key=first)
        self.mlp = eqx.nn.MLP(width, width, 2 * width, 1, jax.nn.gelu, key=second)
        self.norms = eqx.nn.LayerNorm(width), eqx.nn.LayerNorm(width)

    def __call__(self, x: Any) -> Any:
        """Return tokens for tokens."""
        y = jax.vmap(self.norms[0])(x)
        x = x + self.attention(y, y, y)
        return x + jax.vmap(self.mlp)(jax.vmap(self.norms[1])(x))


def equinox_attention(size: Size) -> Case:
    """Return blocks of attention and perceptron of Equinox, over a batch."""
    keys = jax.random.split(jax.random.key(0), size.layers)
    blocks = [Attention(size.width, size.heads, key) for key in keys]
    arrays, rest = eqx.partition(blocks, eqx.is_array)

    def run(arrays: Any, x: Any) -> Any:
        for block in eqx.combine(arrays, rest):
            x = jax.vmap(block)(x)
        return x

    return run, (arrays, _inputs(size))


class Transformer(nn.Module):
    """Blocks of linen's attention and a perceptron."""

    size: Size

    @nn.compact
    def __call__(self, x: Any) -> Any:
        """Return tokens for tokens."""
        for _ in range(self.size.layers):
            attention = nn.MultiHeadDotProductAttention(num_heads=self.size.heads)
            x = x + attention(nn.LayerNorm()(x))
            y = nn.gelu(nn.Dense(2 * self.size.width)(nn.LayerNorm()(x)))
            x = x + nn.Dense(self.size.width)(y)
        return nn.LayerNorm()(x)


class Recurrent(nn.Module):
    """An LSTM over time, and a head."""

    size: Size

    @nn.compact
    def __call__(self, x: Any) -> Any:
        """Return ten scores a step."""
        return nn.Dense(10)(nn.RNN(nn.OptimizedLSTMCell(self.size.width))(x))


def _linen(kind: Callable[[Size], Any]) -> Callable[[Size], Case]:
    def build(size: Size) -> Case:
        model, x = kind(size), _inputs(size)
        return model.apply, (model.init(jax.random.key(0), x), x)

    return build


class ConvNet(nnx.Module):
    """Two convolutions with batch norm, which computes its statistics."""

    def __init__(self, width: int, rngs: Any) -> None:
        self.first = nnx.Conv(3, width, (3, 3), rngs=rngs)
        self.first_norm = nnx.BatchNorm(width, rngs=rngs)
        self.second = nnx.Conv(width, width, (3, 3), strides=2, rngs=rngs)
        self.second_norm = nnx.BatchNorm(width, rngs=rngs)
        self.head = nnx.Linear(width, 10, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        """Return ten scores an image."""
        x = nnx.relu(self.first_norm(self.first(x)))
        x = nnx.relu(self.second_norm(self.second(x)))
        return self.head(x.mean((1, 2)))


def nnx_convnet(size: Size) -> Case:
    """Return convolutions with batch norm of NNX, in training mode."""
    graph, params, rest = nnx.split(
        ConvNet(size.width // 2, nnx.Rngs(0)), nnx.Param, ...
    )

    def run(params: Any, x: Any) -> Any:
        return nnx.merge(graph, params, rest, copy=True)(x)

    images = jax.random.normal(jax.random.key(1), (size.batch, 16, 16, 3))
    return run, (params, images)


def _inputs(size: Size) -> Any:
    shape = (size.batch, size.length, size.width)
    return jax.random.normal(jax.random.key(1), shape, jnp.float32)


MODULES: dict[str, Callable[[Size], Case]] = {
    "equinox_attention": equinox_attention,
    "linen_transformer": _linen(Transformer),
    "linen_lstm": _linen(Recurrent),
    "nnx_convnet": nnx_convnet,
}
"""Builders by name."""
