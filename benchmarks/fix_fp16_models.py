"""Five models that overflow float16 or lose accuracy in it, each for another reason."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks import zoo

SIZE = zoo.Size(width=128, layers=3, vocabulary=500, side=32)


@dataclass(frozen=True)
class Case:
    """A model that float16 does not suit as a whole.

    Attributes:
        why: The reason, for a table.
        model: A torch module, or a function of JAX arrays.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
    """

    why: str
    model: Any
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] | None = None


def t5() -> Case:
    """Return an encoder and decoder with a feed-forward result beyond 65504.

    That is known of the large T5 models, of which transformers keeps this matrix in
    float32. The norms that read the sum divide by its size.
    """
    model, args, kwargs = zoo.build("t5", SIZE, 2, 16)
    with torch.no_grad():
        part = model.get_submodule("encoder.block.1.layer.1.DenseReluDense")
        for name in ("wi.weight", "wo.weight"):
            part.get_parameter(name).mul_(2.0**8)
    return Case("a feed-forward result beyond 65504", model, args, kwargs)


def llama() -> Case:
    """Return a decoder with a gated product beyond 65504 in one layer.

    The matrix that reads the product is small, so that the outputs are as usual:
    "massive activations" are of this kind.
    """
    model, args, kwargs = zoo.build("llama", SIZE, 2, 16)
    with torch.no_grad():
        part = model.get_submodule("model.layers.1.mlp")
        part.get_parameter("gate_proj.weight").mul_(2.0**8)
        part.get_parameter("up_proj.weight").mul_(2.0**6)
        part.get_parameter("down_proj.weight").mul_(2.0**-13)
    return Case("a gated product beyond 65504", model, args, kwargs)


class Sensors(nn.Module):
    """A GRU over readings in their own units, the steps written out."""

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.project = nn.Linear(features, 3 * width)
        self.turn = nn.Linear(width, 3 * width)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 4)

    def forward(self, readings: Tensor) -> Tensor:
        """Return f32[batch, 4] for f32[batch, steps, features]."""
        h = torch.zeros_like(self.turn.weight[0]).expand(readings.shape[0], -1)
        for step in self.project(readings).unbind(1):
            reset, update, new = self.turn(h).chunk(3, -1)
            a, b, c = step.chunk(3, -1)
            new = torch.tanh(c + torch.sigmoid(a + reset) * new)
            update = torch.sigmoid(b + update)
            h = update * h + (1 - update) * new
        return self.head(self.norm(h))


def gru(steps: int = 12) -> Case:
    """Return a GRU over inputs that are not scaled: a pressure in pascals is one."""
    torch.manual_seed(0)
    model = Sensors(8, 64)
    zoo.unit_gain(model)
    readings = torch.randn(4, steps, 8)
    readings[..., 0] = 101325 + 500 * readings[..., 0]
    with torch.no_grad():
        model.project.weight[:, 0] /= 101325
    return Case("an input in pascals, beyond 65504", model.eval(), (readings,))


class Residual(nn.Module):
    """Residual convolutions without norms over pixels of 0 to 255."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.first = nn.ModuleList(
            nn.Conv2d(width, width, 3, padding=1) for _ in range(depth)
        )
        self.last = nn.ModuleList(
            nn.Conv2d(width, width, 3, padding=1) for _ in range(depth)
        )
        self.norm, self.head = nn.GroupNorm(4, width), nn.Linear(width, 10)

    def forward(self, image: Tensor) -> Tensor:
        """Return f32[batch, 10] for f32[batch, 3, side, side]."""
        x = self.stem(image)
        for first, last in zip(self.first, self.last, strict=True):
            x = x + last(functional.relu(first(functional.relu(x))))
        return self.head(self.norm(functional.avg_pool2d(x, 2)).mean((2, 3)))


def resnet() -> Case:
    """Return a residual network of which the activations grow with depth."""
    torch.manual_seed(0)
    model = Residual(16, 10)
    zoo.unit_gain(model)
    with torch.no_grad():
        for name in ("first", "last"):
            for weight in model.get_submodule(name).parameters():
                weight.mul_(2.0 if weight.ndim > 1 else 1.0)
    image = torch.randint(0, 256, (2, 3, 32, 32)).float()
    return Case(
        "activations beyond 65504 in the last of ten blocks", model.eval(), (image,)
    )


class Potential(eqx.Module):
    """Energy of points by networks of their distances, with a cutoff."""

    mix: Any
    layers: tuple[Any, ...]

    def __init__(self, width: int, key: Any) -> None:
        keys = jax.random.split(key, 4)
        self.mix = eqx.nn.Linear(16, width, key=keys[0])
        self.layers = tuple(eqx.nn.Linear(width, width, key=k) for k in keys[1:])

    def __call__(self, points: Any) -> Any:
        """Return f32[points, width] for f32[points, 3]."""
        squares = (points * points).sum(-1)
        products = points @ points.T
        apart = jnp.sqrt(jnp.maximum(squares[:, None] + squares - 2 * products, 1e-3))
        basis = jnp.exp(-jnp.square(apart[..., None] - jnp.linspace(0, 4, 16)))
        h = jax.nn.silu(jax.vmap(self.mix)(basis.sum(1)))
        for layer in self.layers:
            h = h + jax.nn.silu(jax.vmap(layer)(h))
        return h


def potential() -> Case:
    """Return a model of Equinox with distances as differences of large squares."""
    first, second = jax.random.split(jax.random.key(0))
    points = 8 + jax.random.normal(second, (32, 3))
    return Case("distances by cancellation", Potential(32, first), (points,))


CASES: Mapping[str, Callable[[], Case]] = {
    "t5": t5,
    "llama": llama,
    "gru": gru,
    "resnet": resnet,
    "potential": potential,
}
"""Builders by name."""
