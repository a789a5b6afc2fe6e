"""Gradients of one training step in 8 bits and in float16, against float32.

A character GPT on the sources of Python's own library, plain and unit-scaled, with
untrained weights. For each format: the share of the non-zero elements of all gradients
that became zero, the cosine of each parameter's gradient with that of the same model in
float32, and the relative error of all together. Each figure is over seeds: the worst,
and for the cosine the median of all parameters.

    python -m benchmarks.fp8_fidelity --out benchmarks/results/fp8_fidelity.json
"""

import argparse
import inspect
import json
import platform
import statistics
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

import amprewrite
from amprewrite.unit_scaling import functional as scaled
from amprewrite.unit_scaling import scale_fwd

VOCABULARY = 128
"""ASCII."""


@dataclass(frozen=True)
class Size:
    """Extents of the models and of a batch."""

    width: int = 128
    layers: int = 3
    heads: int = 4
    length: int = 128
    batch: int = 32


class Plain(nn.Module):
    """A GPT as usual: layer norms before its branches, normal weights of 0.02."""

    def __init__(self, size: Size) -> None:
        """Draw the weights from torch's generator."""
        super().__init__()
        self.size, width = size, size.width

        def drawn(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(shape) * self.spread)

        self.tokens = drawn(VOCABULARY, width)
        self.places = drawn(size.length, width)
        self.qkv = nn.ParameterList(drawn(3 * width, width) for _ in self.blocks)
        self.out = nn.ParameterList(drawn(width, width) for _ in self.blocks)
        self.up = nn.ParameterList(drawn(4 * width, width) for _ in self.blocks)
        self.down = nn.ParameterList(drawn(width, 4 * width) for _ in self.blocks)
        self.readout = drawn(VOCABULARY, width)

    @property
    def spread(self) -> float:
        """Standard deviation of the weights."""
        return 0.02

    @property
    def blocks(self) -> range:
        """Numbers of the layers."""
        return range(self.size.layers)

    def split(self, qkv: Tensor) -> tuple[Tensor, ...]:
        """Return queries, keys and values, (batch, heads, length, width / heads)."""
        parts = qkv.unflatten(-1, (3, self.size.heads, -1))
        return tuple(part.transpose(1, 2) for part in parts.unbind(2))

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of (batch, length) tokens."""
        x = functional.embedding(ids, self.tokens) + self.places
        for qkv, out, up, down in zip(
            self.qkv, self.out, self.up, self.down, strict=True
        ):
            q, k, v = self.split(functional.linear(self.norm(x), qkv))
            made = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + functional.linear(made.transpose(1, 2).flatten(2), out)
            hidden = functional.gelu(functional.linear(self.norm(x), up))
            x = x + functional.linear(hidden, down)
        logits = functional.linear(self.norm(x), self.readout)
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def norm(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        return functional.layer_norm(x, x.shape[-1:])


class Unit(Plain):
    """The same GPT of scaled ops, with weights of standard deviation 1."""

    @property
    def spread(self) -> float:
        """Standard deviation of the weights."""
        return 1.0

    def attend(self, x: Tensor, qkv: Tensor, out: Tensor) -> Tensor:
        """Return the branch of attention."""
        q, k, v = self.split(scaled.linear(self.norm(x), qkv))
        made = scaled.scaled_dot_product_attention(q, k, v, is_causal=True)
        return scaled.linear(made.transpose(1, 2).flatten(2), out)

    def feed(self, x: Tensor, up: Tensor, down: Tensor) -> Tensor:
        """Return the branch of the MLP."""
        return scaled.linear(scaled.gelu(scaled.linear(self.norm(x), up)), down)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of (batch, length) tokens."""
        places = self.places.expand(*ids.shape, -1)
        x = scaled.add(scaled.embedding(ids, self.tokens), places)
        for qkv, out, up, down in zip(
            self.qkv, self.out, self.up, self.down, strict=True
        ):
            x = scaled.residual_apply(
                lambda z, qkv=qkv, out=out: self.attend(z, qkv, out), x
            )
            x = scaled.residual_apply(
                lambda z, up=up, down=down: self.feed(z, up, down), x
            )
        logits = scaled.linear_readout(self.norm(x), self.readout)
        return scaled.cross_entropy(logits.flatten(0, 1), targets.flatten())


@dataclass(frozen=True)
class Row:
    """One way to compute the gradients.

    Attributes:
        model: ``plain`` or ``unit``.
        policy: Policy of ``amprewrite.convert``.
        scale: Factor on the loss, taken out of the gradients.
        share: Factor that the loss has by itself, as a mean over more tokens has.
    """

    model: str
    policy: str
    scale: float = 1.0
    share: float = 1.0


ROWS = (
    *(Row(model, "simulate e4m3/e5m2") for model in ("plain", "unit")),
    *(Row(model, "simulate e4m3/e5m2", 2.0**14) for model in ("plain", "unit")),
    *(Row(model, "simulate e4m3") for model in ("plain", "unit")),
    Row("plain", "simulate e4m3/e5m2 current"),
    Row("plain", "fp8"),
    Row("unit", "unit-fp8"),
    *(Row(model, "bf16") for model in ("plain", "unit")),
    *(Row(model, "fp16") for model in ("plain", "unit")),
    *(Row(model, "fp16", share=2.0**-12) for model in ("plain", "unit")),
)


class Smaller(nn.Module):
    """A model with a part of its loss."""

    def __init__(self, model: Plain, share: float) -> None:
        """Hold the model."""
        super().__init__()
        self.model, self.share = model, share

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Return the loss; a unit-scaled model keeps its gradient, as by its rule."""
        loss = self.model(ids, targets)
        if isinstance(self.model, Unit):
            return scale_fwd(loss, self.share)
        return loss * self.share


def text_of(tokens: int) -> Tensor:
    """Return the first ASCII characters of a few sources of Python's library."""
    sources = "".join(inspect.getsource(part) for part in (argparse, textwrap, inspect))
    codes = [ord(letter) for letter in sources if ord(letter) < VOCABULARY]
    return torch.tensor(codes[:tokens])


def batch_of(size: Size) -> tuple[Tensor, Tensor]:
    """Return tokens and their successors, (batch, length) each."""
    text = text_of(size.batch * size.length + 1)
    shape = (size.batch, size.length)
    return text[:-1].reshape(shape), text[1:].reshape(shape)


def gradients(
    run: Callable[..., Tensor], model: nn.Module, scale: float
) -> list[Tensor]:
    """Return the gradient of each parameter, without the factor ``scale``."""
    model.zero_grad()
    ids = batch_of(next(p.size for p in model.modules() if isinstance(p, Plain)))
    (run(*ids) * scale).backward()
    held = [p.grad for p in model.parameters()]
    return [g.detach().double() / scale for g in held if g is not None]


def fidelity(row: Row, size: Size, seed: int) -> tuple[float, list[float], float]:
    """Return the share of zeroed elements, the cosines and the relative error."""
    torch.manual_seed(seed)
    kind = {"plain": Plain, "unit": Unit}[row.model]
    model = Smaller(kind(size), row.share).train()
    exact = gradients(model, model, 1.0)
    converted = amprewrite.convert(model, row.policy, args=batch_of(size))
    found = gradients(converted, model, row.scale)
    pairs = list(zip(found, exact, strict=True))
    counted = sum(int((e != 0).sum()) for e in exact)
    zeroed = sum(int(((f == 0) & (e != 0)).sum()) for f, e in pairs)
    cosines = [
        float(functional.cosine_similarity(f.flatten(), e.flatten(), 0))
        for f, e in pairs
    ]
    wrong = sum(float(((f - e) ** 2).sum()) for f, e in pairs)
    return (
        zeroed / counted,
        cosines,
        (wrong / sum(float((e**2).sum()) for e in exact)) ** 0.5,
    )


def measured(row: Row, size: Size, seeds: int) -> dict[str, object]:
    """Return the figures of a row."""
    found = [fidelity(row, size, seed) for seed in range(seeds)]
    cosines = [cosine for _, each, _ in found for cosine in each]
    return {
        "model": row.model,
        "policy": row.policy,
        "loss_scale": row.scale,
        "loss_share": row.share,
        "zeroed": max(zeroed for zeroed, _, _ in found),
        "median_cosine": statistics.median(cosines),
        "least_cosine": min(cosines),
        "relative_error": max(error for _, _, error in found),
    }


def main() -> None:
    """Measure every row and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    asked = parser.parse_args()
    start, size, rows = time.perf_counter(), Size(), []
    for row in ROWS:
        rows.append(measured(row, size, asked.seeds))
        print(rows[-1], flush=True)
    head = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "tokens": size.batch * size.length,
        "width": size.width,
        "layers": size.layers,
        "seeds": asked.seeds,
        "seconds": round(time.perf_counter() - start),
    }
    if asked.out:
        text = json.dumps({**head, "rows": rows}, indent=1) + "\n"
        asked.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
