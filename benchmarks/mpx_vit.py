"""A vision transformer of Equinox in mixed precision: mpx with marks, and converted.

The claim of mpx's authors is measured: about half the memory, so that a batch fits that
did not. Images are scikit-learn's digits, enlarged to 32 x 32 x 3; the shape
``paper`` is that of mpx's experiment, for a GPU. For each variant: the loss and the
accuracy after some steps, the bytes that the forward pass leaves for the backward pass,
XLA's figures of the compiled step's memory, the largest batch within a limit by these
figures (nothing is run), and the time of a step over float32's, interleaved with it.

    python -m benchmarks.mpx_vit --out benchmarks/results/mpx_vit.json
"""

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import mpx
import optax

import amprewrite
from amprewrite.compat import mpx as compat
from amprewrite.training import jax as training
from benchmarks.jax_accuracy import saved_bytes
from benchmarks.mpx_vit_model import (
    CHANNELS,
    HELD_OUT,
    SIDE,
    Images,
    VisionTransformer,
    digits,
    marked,
    unmarked,
)

Tree = Any
"""Any pytree."""


@dataclass(frozen=True)
class Size:
    """Shape of a model and of its training.

    Attributes:
        width: Width of the tokens.
        heads: Heads of attention.
        blocks: Number of blocks.
        batch: Images in a batch.
        granule: Largest batches are multiples of this.
        steps: Steps of training.
        rounds: Timed steps of each variant.
        rate: Learning rate.
    """

    width: int
    heads: int
    blocks: int
    batch: int
    granule: int
    steps: int
    rounds: int
    rate: float


SIZES = {
    "tiny": Size(16, 2, 2, 4, 2, 2, 1, 3e-3),
    "small": Size(64, 4, 4, 16, 8, 100, 3, 3e-3),
    "paper": Size(800, 8, 12, 256, 32, 200, 20, 3e-4),
}

UNOPTIMISED = {"xla_backend_optimization_level": 0}
"""Options that compile in half the time on a CPU, with the same use of memory."""

SCALE = 2.0**15
"""Loss scale at the start."""


@dataclass(frozen=True)
class Variant:
    """One way to train.

    Attributes:
        kind: ``float32``, ``mpx`` or ``amprewrite``.
        half: Name of the 16-bit dtype; empty for float32.
        again: Whether values are computed again in the backward pass: with
            ``recompute=True`` where the function is converted, else whole blocks under
            ``jax.checkpoint``.
    """

    kind: str
    half: str = ""
    again: bool = False

    @property
    def policy(self) -> str:
        """The policy of the 16-bit dtype."""
        return {"bfloat16": "bf16", "float16": "fp16"}[self.half]

    def loss(self, size: Size) -> Callable[..., Any]:
        """Return the loss of a model, images and labels; marked for mpx alone."""
        with_mpx = self.kind == "mpx"
        full = marked(jnp.dtype(self.half)) if with_mpx else unmarked
        last = marked(jnp.float32) if with_mpx else unmarked
        whole = self.again and self.kind != "amprewrite"

        def mean(scores: Any, labels: Any) -> Any:
            losses = optax.softmax_cross_entropy_with_integer_labels(scores, labels)
            return losses.mean()

        def loss(model: VisionTransformer, images: Any, labels: Any) -> Any:
            scores = model(images, size.heads, full, again=whole)
            return last(mean)(scores, labels)

        return loss

    def forward(self, size: Size) -> Callable[..., Any]:
        """Return the loss as it is differentiated, without a loss scale."""
        loss = self.loss(size)
        if self.kind == "amprewrite":
            return amprewrite.convert(loss, self.policy, recompute=self.again)
        if self.kind == "mpx":
            low = partial(mpx.cast_tree, dtype=jnp.dtype(self.half))
            return lambda model, x, y: loss(low(model), low(x), y)
        return loss

    def scale(self) -> Any:
        """Return the loss scale at the start."""
        if self.kind == "mpx":
            return mpx.DynamicLossScaling(jnp.float32(SCALE), jnp.ones(()))
        if self.kind == "amprewrite" and not self.again:
            return compat.DynamicLossScaling(jnp.float32(SCALE), jnp.ones(()))
        if self.half == "float16":
            return training.DynamicLossScale(SCALE)
        return training.NoOpLossScale()

    def graded(self, size: Size) -> Callable[..., Any]:
        """Return what gives ``(value, scale, finite, gradients)``."""
        loss = self.loss(size)

        def run(scale: Any, *args: Any) -> Any:
            if self.kind == "mpx":
                mpx.set_half_precision_datatype(jnp.dtype(self.half))
                return mpx.filter_value_and_grad(loss, scale)(*args)
            if self.kind == "amprewrite" and not self.again:
                compat.set_half_precision_datatype(self.half)
                return compat.filter_value_and_grad(loss, scale)(*args)
            policy = self.policy if self.half else None
            options: dict[str, Any] = {"recompute": True} if self.half else {}
            gradients = training.filter_value_and_grad(
                loss, policy, loss_scale=scale, **options
            )
            return gradients(*args)

        return run


VARIANTS = {
    "float32": Variant("float32"),
    "mpx bf16": Variant("mpx", "bfloat16"),
    "amprewrite bf16": Variant("amprewrite", "bfloat16"),
    "amprewrite bf16, recompute": Variant("amprewrite", "bfloat16", again=True),
    "mpx fp16": Variant("mpx", "float16"),
    "amprewrite fp16": Variant("amprewrite", "float16"),
    "amprewrite fp16, recompute": Variant("amprewrite", "float16", again=True),
    "float32, blocks checkpointed": Variant("float32", again=True),
    "mpx bf16, blocks checkpointed": Variant("mpx", "bfloat16", again=True),
}
"""What is measured, by name; float32 is the first."""


class Trial:
    """The compiled step of one variant, with its state.

    Attributes:
        size: The shape.
        variant: The variant.
        model: The parameters; ``state`` is the optimizer's, ``scale`` the loss scale.
        step: The compiled step.
    """

    def __init__(self, variant: Variant, size: Size) -> None:
        """Compile the step for a batch of the size."""
        self.variant, self.size = variant, size
        self.optimizer = optax.adamw(size.rate)
        self.model: Any = VisionTransformer(size.width, size.blocks, jax.random.key(0))
        self.state, self.scale = self.optimizer.init(self.model), variant.scale()
        self.step = self.compiled(size.batch)

    def compiled(self, batch: int, **options: Any) -> Any:
        """Return the step for a batch, compiled with options of XLA."""
        graded = self.variant.graded(self.size)

        def step(model: Any, state: Any, scale: Any, images: Any, labels: Any) -> Any:
            value, scale, finite, gradients = graded(scale, model, images, labels)
            model, state = training.optimizer_update(
                model, self.optimizer, state, gradients, finite
            )
            return model, state, scale, value

        images = jax.ShapeDtypeStruct((batch, SIDE, SIDE, CHANNELS), jnp.float32)
        labels = jax.ShapeDtypeStruct((batch,), jnp.int32)
        run = jax.jit(step, donate_argnums=(0, 1, 2))
        lowered = run.lower(self.model, self.state, self.scale, images, labels)
        return lowered.compile(compiler_options=options)

    def run(self, images: Any, labels: Any) -> float:
        """Run a step and return its loss."""
        made = self.step(self.model, self.state, self.scale, images, labels)
        self.model, self.state, self.scale, value = jax.block_until_ready(made)
        return float(value)

    def accuracy(self, images: Images) -> float:
        """Return the share of held-out digits that float32 tells by the parameters."""
        call = partial(self.model, heads=self.size.heads, full=unmarked, again=False)
        scores = jax.jit(call)(images.pixels[:HELD_OUT])
        return float((scores.argmax(-1) == images.labels[:HELD_OUT]).mean())


def kept_bytes(variant: Variant, size: Size) -> int:
    """Return the bytes that the forward pass leaves for the backward pass."""
    model = VisionTransformer(size.width, size.blocks, jax.random.key(0))
    images = jnp.zeros((size.batch, SIDE, SIDE, CHANNELS))
    labels = jnp.zeros(size.batch, jnp.int32)
    return saved_bytes(variant.forward(size), (model, images, labels))[0]


def memory(compiled: Any) -> int:
    """Return the bytes of arguments and temporaries, by XLA's own analysis."""
    found = compiled.memory_analysis()
    return int(found.temp_size_in_bytes + found.argument_size_in_bytes)


def largest(trial: Trial, limit: int) -> int:
    """Return the largest batch with a step within ``limit`` bytes; 0 if none is.

    Memory is nearly linear in the batch: the search begins where the line through two
    batches meets the limit, and compiles the neighbours.
    """
    granule = trial.size.granule
    known = {trial.size.batch // granule: memory(trial.step)}

    def held(count: int) -> int:
        if count not in known:
            known[count] = memory(trial.compiled(count * granule, **UNOPTIMISED))
        return known[count]

    (one,) = known
    each = max((held(2 * one) - held(one)) // one, 1)
    count = max(one + (limit - held(one)) // each, 0)
    while count and held(count) > limit:
        count -= 1
    while held(count + 1) <= limit:
        count += 1
    return count * granule


def times(trial: Trial, base: Trial, batch: tuple[Any, Any]) -> list[float]:
    """Return the median seconds of a step, and of one of ``base``, interleaved."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(trial.size.rounds):
        for one, found in zip((trial, base), seconds, strict=True):
            start = time.process_time()
            one.run(*batch)
            found.append(time.process_time() - start)
    return [statistics.median(found) for found in seconds]


def row(trial: Trial, base: Trial, images: Images, limit: int) -> dict[str, Any]:
    """Return the figures of one variant."""
    size = trial.size
    batches = list(images.batches(size.batch, size.steps))
    losses = [trial.run(*batch) for batch in batches]
    accuracy = trial.accuracy(images)
    mine, full = times(trial, base, batches[0])
    kept, held = kept_bytes(trial.variant, size), memory(trial.step)
    return {
        "loss": statistics.mean(losses[-10:]),
        "accuracy": accuracy,
        "bytes kept": kept,
        "bytes kept / float32": kept / kept_bytes(base.variant, size),
        "compiled bytes": held,
        "compiled bytes / float32": held / memory(base.step),
        "largest batch": largest(trial, limit),
        "processor seconds of a step": mine,
        "step / float32": mine / full,
    }


def measure(
    size: Size, names: list[str], limit: int, done: Callable[[dict[str, Any]], None]
) -> None:
    """Measure variants, and hand over the table after each.

    Args:
        size: The shape.
        names: Names of the variants.
        limit: Bytes for the largest batch; 0 for those of float32 at the batch of
            the size.
        done: Takes the table of all rows so far.
    """
    images = digits()
    base = Trial(VARIANTS["float32"], size)
    limit = limit or memory(base.step)
    rows: dict[str, Any] = {}
    for name in names:
        trial = Trial(VARIANTS[name], size)
        rows[name] = row(trial, base, images, limit)
        done({"size": asdict(size), "limit in bytes": limit, "rows": dict(rows)})


def machine() -> Mapping[str, Any]:
    """Return the device and the versions."""
    names = ("jax", "equinox", "optax", "mixed-precision-for-JAX")
    return {
        "what": "a vision transformer on digits of 32 x 32 x 3, with AdamW",
        "device": jax.devices()[0].device_kind,
        "processors": os.cpu_count(),
        "python": platform.python_version(),
        **{name: version(name) for name in names},
    }


def main() -> None:
    """Measure and write JSON after each variant."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS))
    parser.add_argument("--limit", type=int, default=0, help="bytes; 0: float32's")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()

    def done(table: dict[str, Any]) -> None:
        name = list(table["rows"])[-1]
        print(name, json.dumps(table["rows"][name]), flush=True)
        if options.out:
            text = json.dumps({**machine(), **table}, indent=1) + "\n"
            options.out.write_text(text, "utf-8")

    measure(SIZES[options.size], options.variants, options.limit, done)


if __name__ == "__main__":
    main()
