"""Whether placement with measured prices is ever slower than full precision.

Calibrates this machine in a folder of its own, converts small programs with placement
``promote``, with ``optimal`` by the default prices and by the measured ones, and times
all of them interleaved with the original, on one core, by the processor time of the
process, which other programs on the machine disturb least. The figures are the medians
of the ratios to full precision within a round; above 1 is slower.

    OMP_NUM_THREADS=1 python -m benchmarks.calibration --out FILE.json
"""

# ruff: noqa: ANN401  # models, arguments and programs of both frameworks are anything

import argparse
import json
import os
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

if hasattr(os, "sched_setaffinity"):  # before JAX counts the processors
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import nn

import amprewrite
from amprewrite import api
from amprewrite.errors import AmpWarning
from benchmarks import zoo

POLICIES = ("bf16", "fp16")

OFF = "converted, nothing lowered"

VARIANTS = {
    OFF: ("promote", False),
    "promote": ("promote", False),
    "optimal, default prices": ("optimal", False),
    "optimal, measured prices": ("optimal", True),
}
"""Placement, and whether it may use what was measured. The first has policy ``off``:
what a converted program takes for itself, which is no matter of precision."""

MLPS = {
    "mlp 1 x 4096": (1, 4096),
    "mlp 32 x 32": (32, 32),
    "mlp 64 x 64": (64, 64),
    "mlp 128 x 512": (128, 512),
}
"""Rows and width of two linear layers with a GELU between them."""

LEAST_ROUNDS, MOST_ROUNDS = 11, 200

Run = Callable[[], Any]


def torch_cases() -> Iterator[tuple[str, Any, tuple[Any, ...], dict[str, Any]]]:
    """Yield models with their arguments."""
    torch.manual_seed(0)
    for name, (rows, width) in MLPS.items():
        layers = nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)
        yield name, nn.Sequential(*layers).eval(), (torch.randn(rows, width),), {}
    for name in ("bert", "vit", "resnet", "unet"):
        yield f"{name}, tiny", *zoo.build(name, zoo.TINY, 2, 16)


def jax_cases() -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    """Yield functions with their arguments."""
    random = np.random.default_rng(0)

    def normal(*shape: int) -> Any:
        return jnp.asarray(random.normal(size=shape) / shape[0] ** 0.5, jnp.float32)

    def mlp(x: Any, w: Any, v: Any) -> Any:
        return jax.nn.gelu(x @ w) @ v

    def attention(x: Any, w: Any, v: Any) -> Any:
        q, k, values = jnp.split(x @ w, 3, axis=-1)
        scores = jnp.einsum("bqd,bkd->bqk", q, k) / 8.0
        mixed = jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(scores), values)
        return x + mixed @ v

    def convolution(x: Any, w: Any, v: Any) -> Any:
        y = jax.nn.relu(jax.lax.conv(x, w, (1, 1), "SAME"))
        return jax.lax.conv(y, v, (1, 1), "SAME")

    for name, (rows, width) in MLPS.items():
        weights = normal(width, width), normal(width, width)
        yield name, mlp, (normal(rows, width), *weights)
    yield "attention", attention, (normal(4, 64, 64), normal(64, 192), normal(64, 64))
    kernels = normal(32, 32, 3, 3) / 17.0, normal(32, 32, 3, 3) / 17.0
    yield "convolutions", convolution, (normal(2, 32, 16, 16), *kernels)


@contextmanager
def cache(folder: str) -> Iterator[None]:
    """Let what was measured be looked for in ``folder``."""
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = folder
    try:
        yield
    finally:
        if before is None:
            del os.environ["XDG_CACHE_HOME"]
        else:
            os.environ["XDG_CACHE_HOME"] = before


def measure(runs: dict[str, Run], seconds: float) -> dict[str, float]:
    """Return for every run the median of its time over that of the first.

    Args:
        runs: The variants by name; each is run until its result is there.
        seconds: How long, about.
    """
    once: dict[str, float] = {}
    for name, run in runs.items():
        run()
        start = time.process_time()
        run()
        once[name] = max(time.process_time() - start, 1e-7)
    repeats = {name: max(int(1e-3 / took), 1) for name, took in once.items()}
    found: dict[str, list[float]] = {name: [] for name in runs}
    order = Random(0)
    first, rounds, end = next(iter(runs)), 0, time.perf_counter() + seconds
    while rounds < LEAST_ROUNDS or (rounds < MOST_ROUNDS and time.perf_counter() < end):
        rounds += 1
        for name in order.sample([*runs], len(runs)):  # nobody follows the same one
            runs[name]()  # its weights are in the cache then, whoever ran before
            start = time.process_time()
            for _ in range(repeats[name]):
                runs[name]()
            found[name].append((time.process_time() - start) / repeats[name])
    return {
        name: round(
            statistics.median(
                mine / its for mine, its in zip(times, found[first], strict=True)
            ),
            3,
        )
        for name, times in found.items()
    }


def row(
    prepare: Callable[[str, str], tuple[Run, Any]],
    full: Run,
    folder: str,
    seconds: float,
) -> dict[str, Any]:
    """Return one row of the table.

    Args:
        prepare: Gives the run of a placement for a variant, and its plan.
        full: The run of the original.
        folder: Where what was measured is kept.
        seconds: How long to measure.
    """
    runs, lowered = {"full": full, "full again": full}, dict[str, str]()
    for name, (placement, measured) in VARIANTS.items():
        with TemporaryDirectory() as empty, cache(folder if measured else empty):
            runs[name], plan = prepare(placement, name)
            runs[name]()  # JAX traces and compiles now, with these prices
            lowered[name] = f"{len(plan.lowered)} of {len(plan.decisions)}"
    ratios = measure(runs, seconds)
    del ratios["full"]
    return {"time over full": ratios, "ops lowered": lowered}


def torch_rows(folder: str, seconds: float) -> dict[str, Any]:
    """Return a row for every torch model and policy."""
    rows: dict[str, Any] = {}
    for name, model, args, kwargs in torch_cases():
        for policy in POLICIES:

            def run(program: Any, args: Any = args, kwargs: Any = kwargs) -> Run:
                return lambda: program(*args, **kwargs)

            def prepare(
                placement: str,
                variant: str,
                model: Any = model,
                policy: str = policy,
                given: dict[str, Any] = {"args": args, "kwargs": kwargs},  # noqa: B006  # bound now
            ) -> tuple[Run, Any]:
                named = "off" if variant == OFF else policy
                converted = amprewrite.convert(
                    model, named, placement=placement, **given
                )
                return run(converted), converted.plan

            with torch.no_grad():
                rows[f"{name}, {policy}"] = row(prepare, run(model), folder, seconds)
            print("torch", name, policy, rows[f"{name}, {policy}"], flush=True)
    return rows


def jax_rows(folder: str, seconds: float) -> dict[str, Any]:
    """Return a row for every JAX function and policy, compiled."""
    rows: dict[str, Any] = {}
    for name, function, args in jax_cases():
        for policy in POLICIES:

            def run(program: Any, args: Any = args) -> Run:
                compiled = jax.jit(program)
                return lambda: jax.block_until_ready(compiled(*args))

            def prepare(
                placement: str,
                variant: str,
                function: Any = function,
                policy: str = policy,
                args: Any = args,
            ) -> tuple[Run, Any]:
                given = {"placement": placement, "target": "compiled", "args": args}
                named = "off" if variant == OFF else policy
                converted = amprewrite.convert(function, named, **given)
                return run(converted), converted.plan

            rows[f"{name}, {policy}"] = row(prepare, run(function), folder, seconds)
            print("jax", name, policy, rows[f"{name}, {policy}"], flush=True)
    return rows


def worst(rows: dict[str, Any]) -> dict[str, float]:
    """Return the largest ratio of every variant; of the last one to the first too."""
    names = ("full again", *VARIANTS)
    found = [row["time over full"] for row in rows.values()]
    most = {name: max(ratios[name] for ratios in found) for name in names}
    last = names[-1]
    most[f"{last}, over {OFF}"] = round(max(r[last] / r[OFF] for r in found), 3)
    return most


def main() -> None:
    """Measure and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter(
        "ignore", AmpWarning
    )  # float16 is slow here: that is the point
    with TemporaryDirectory() as folder:
        with cache(folder):
            start = time.perf_counter()
            calibrations = api.calibrate()
            took = time.perf_counter() - start
        sides = {
            "torch": torch_rows(folder, options.seconds),
            "jax": jax_rows(folder, options.seconds),
        }
    found = {
        "what": "median ratio of processor time to full precision; above 1 is slower",
        "devices": {name: str(one.device) for name, one in calibrations.items()},
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
        "processors": len(os.sched_getaffinity(0)),
        "seconds to calibrate": round(took, 1),
        "torch": torch.__version__,
        "jax": jax.__version__,
        "worst": {name: worst(rows) for name, rows in sides.items()},
        "rows": sides,
    }
    print(json.dumps(found["worst"], indent=1))
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
