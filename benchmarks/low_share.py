"""Share of the multiply-adds that runs low, of every model of the zoo.

Demand for exactness, guards and loops keeps products full where rounding would show.
This counts what they cost: a model whose share falls has lost what the conversion is
for. Four models are not in the zoo, because they are here for their exact arguments and
guards: codes by rounding, positions by sines, a detection head, a margin of angles.

    python -m benchmarks.low_share --out benchmarks/results/low_share.json
"""

import argparse
import json
import warnings
from collections import defaultdict
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import jax
import torch
from torch import nn

import amprewrite
from amprewrite.errors import AmpWarning
from benchmarks import jax_zoo, transformers_speed, zoo
from benchmarks.product_counter import products

POLICIES = ("bf16", "fp16")
"""Policies that are compared."""

LOW = ("bfloat16", "float16")
"""Dtypes that count as low."""


class Codes(nn.Module):
    """A convolutional autoencoder with rounded codes, straight-through."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, width, 4, 2, 1),
            nn.ReLU(),
            nn.Conv2d(width, width, 4, 2, 1),
            nn.ReLU(),
            nn.Conv2d(width, 4, 1),
        )
        self.decoder = nn.Sequential(
            nn.Conv2d(4, width, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(width, width, 4, 2, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(width, 3, 4, 2, 1),
        )

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Return f32[batch, 3, side, side]."""
        codes = self.encoder(image)
        return self.decoder(codes + (codes.round() - codes).detach())


class Field(nn.Module):
    """A radiance field: sines of positions, then a perceptron."""

    def __init__(self, width: int = 64, octaves: int = 6) -> None:
        super().__init__()
        self.octaves = nn.Buffer(2.0 ** torch.arange(octaves))
        self.layers = nn.Sequential(
            nn.Linear(6 * octaves, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 4),
        )

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        """Return f32[points, 4]: colours and a density."""
        angles = (points[:, :, None] * self.octaves).flatten(1)
        return self.layers(torch.cat([angles.sin(), angles.cos()], 1)).sigmoid()


class Detector(nn.Module):
    """A backbone, and boxes that are clamped to the image."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, width, 3, 2, 1),
            nn.BatchNorm2d(width),
            nn.SiLU(),
            nn.Conv2d(width, width, 3, 2, 1),
            nn.SiLU(),
        )
        self.boxes, self.scores = nn.Conv2d(width, 4, 1), nn.Conv2d(width, 10, 1)

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return f32[batch, 4, ...] boxes and f32[batch, 10, ...] log scores."""
        features = self.backbone(image)
        sizes = self.boxes(features).clamp(max=4.1).exp()
        scores = self.scores(features).sigmoid().clamp(1e-6, 1 - 1e-6)
        return sizes.clamp(0, 1333), scores.log()


class Margin(nn.Module):
    """An embedding, and cosines to classes with a margin of the angle."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.classes = nn.Parameter(torch.randn(10, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return f32[batch, 10]."""
        units = nn.functional.normalize(self.embed(x))
        cosines = nn.functional.linear(units, nn.functional.normalize(self.classes))
        return 64 * (cosines.clamp(-1 + 1e-7, 1 - 1e-7).acos() + 0.5).cos()


SENSITIVE: dict[str, Callable[[], zoo.Case]] = {
    "codes by rounding": lambda: (Codes(), (torch.randn(2, 3, 32, 32),), {}),
    "field of sines": lambda: (Field(), (torch.rand(64, 3),), {}),
    "detector": lambda: (Detector(), (torch.randn(2, 3, 32, 32),), {}),
    "margin of angles": lambda: (Margin(), (torch.randn(16, 64),), {}),
}
"""Builders of models with exact arguments and guards, by name."""


def torch_share(case: zoo.Case, policy: str) -> float:
    """Return the share of a torch model, between 0 and 1, by its program as it runs."""
    model, args, kwargs = case
    converted = amprewrite.convert(
        model.eval(), policy, args=args, kwargs=kwargs, lowering=False
    )
    with torch.no_grad():
        return _share(products(lambda: converted(*args, **kwargs)))


def jax_share(case: jax_zoo.Case, policy: str) -> float:
    """Return the share of a JAX function, between 0 and 1, by its jaxpr."""
    function, args = case
    counts: dict[str, float] = defaultdict(float)
    _count(jax.make_jaxpr(amprewrite.convert(function, policy))(*args).jaxpr, counts, 1)
    return _share(counts)


def _share(counts: dict[str, float]) -> float:
    return sum(counts.get(dtype, 0) for dtype in LOW) / sum(counts.values())


def _count(jaxpr: Any, counts: dict[str, float], times: int) -> None:
    """Add the multiply-adds of ``jaxpr``, by the dtype of the first operand."""
    for eqn in jaxpr.eqns:
        name, shapes = eqn.primitive.name, [v.aval.shape for v in eqn.invars]
        result = eqn.outvars[0].aval
        length = 0
        if name == "dot_general":
            axes = eqn.params["dimension_numbers"][0][0]
            length = prod(shapes[0][axis] for axis in axes)
        elif name == "conv_general_dilated":
            features = eqn.params["dimension_numbers"].rhs_spec[0]
            length = prod(shapes[1]) // shapes[1][features]
        counts[eqn.invars[0].aval.dtype.name if length else "none"] += (
            times * length * prod(result.shape)
        )
        inside = times * (eqn.params["length"] if name == "scan" else 1)
        for value in eqn.params.values():
            for body in value if isinstance(value, tuple | list) else (value,):
                if hasattr(body := getattr(body, "jaxpr", body), "eqns"):
                    _count(body, counts, inside)


def models() -> dict[str, Callable[[str], float]]:
    """Return the share of every model by its name, as a function of the policy."""
    rows: dict[str, Callable[[str], float]] = {}
    for name in zoo.ZOO:
        rows[name] = lambda policy, name=name: torch_share(
            zoo.build(name, zoo.TINY, 2, 16), policy
        )
    for name in transformers_speed.FAMILIES:
        rows[f"{name} (transformers)"] = lambda policy, name=name: torch_share(
            transformers_speed.build(name), policy
        )
    for name, build in SENSITIVE.items():
        rows[name] = lambda policy, build=build: torch_share(build(), policy)
    for name in jax_zoo.ZOO:
        rows[f"{name} (JAX)"] = lambda policy, name=name: jax_share(
            jax_zoo.build(name), policy
        )
    return rows


def main() -> None:
    """Measure and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", metavar="NAME")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore", AmpWarning)
    table = models()
    rows: dict[str, dict[str, float]] = {}
    for name in options.models or table:
        rows[name] = {policy: round(table[name](policy), 4) for policy in POLICIES}
        print(name, rows[name], flush=True)
    result = {
        "what": "share of multiply-adds with low operands, placement promote",
        "torch": torch.__version__,
        "transformers": zoo.transformers.__version__,
        "jax": jax.__version__,
        "rows": rows,
    }
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
