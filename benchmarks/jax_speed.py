"""Time of converted JAX functions beside float32 and everything cast.

Forward passes and gradients of the models of ``benchmarks.jax_zoo``, each form compiled
by ``jax.jit`` and run in turn in one process. Times are medians of the processor time
of all threads; those of a form are given over float32's. Run on one core:

    taskset -c 0 python -m benchmarks.jax_speed --out benchmarks/results/jax_speed.json
"""

import argparse
import itertools
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

import amprewrite
from benchmarks import jax_compiled, jax_zoo
from benchmarks.jax_conversion import everything_cast
from benchmarks.training_jax import processor_instructions

SIZES = {
    "small": jax_zoo.TINY,
    "medium": jax_zoo.Size(width=256, layers=4, length=64, batch=8, side=32),
}
"""Sizes of the models."""

NAMES = ("mlp", "transformer", "vit", "gru", "convnet")
"""Models; of each, the forward pass and the gradient."""

CHUNK = 2e-3
"""Least seconds of a timed chunk of calls."""

Run = Callable[[], Any]


def forms(case: jax_zoo.Case) -> dict[str, Run]:
    """Return the forms of a program, as calls without arguments that wait for it."""
    function, args = case
    made: dict[str, Callable[..., Any]] = {
        "float32": function,
        "everything cast": everything_cast(function),
        "promote": amprewrite.convert(function, args=args),
        "fastest": amprewrite.convert(function, args=args, placement="fastest"),
    }

    def call(run: Callable[..., Any]) -> Run:
        compiled = jax.jit(run)
        return lambda: jax.block_until_ready(compiled(*args))

    return {name: call(run) for name, run in made.items()}


def times(runs: dict[str, Run], rounds: int) -> dict[str, float]:
    """Return the median seconds of a call of each form; rounds are interleaved."""
    for run in runs.values():
        run()
    start = time.process_time()
    next(iter(runs.values()))()
    calls = max(1, round(CHUNK / max(time.process_time() - start, 1e-6)))
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            start = time.process_time()
            for _ in range(calls):
                run()
            seconds[name].append((time.process_time() - start) / calls)
    return {name: statistics.median(found) for name, found in seconds.items()}


def measure(name: str, size: jax_zoo.Size, rounds: int) -> dict[str, Any]:
    """Return the times and errors of one program."""
    case = jax_compiled.BUILDERS[name](size)
    runs, wanted = forms(case), jax_compiled.reference(*case)
    found = times(runs, rounds)
    return {
        "seconds": found["float32"],
        "time / float32": {key: s / found["float32"] for key, s in found.items()},
        "error": {key: jax_compiled.error(run(), wanted) for key, run in runs.items()},
    }


def main() -> None:
    """Measure and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), choices=SIZES)
    parser.add_argument("--models", nargs="+", default=list(NAMES))
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows: dict[str, Any] = {}
    given = [
        f"{model}{what}" for model in options.models for what in ("", ", gradient")
    ]
    names = [name for name in given if name in jax_compiled.BUILDERS]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder  # nothing is known of earlier runs
        for size, name in itertools.product(options.sizes, names):
            row = measure(name, SIZES[size], options.rounds)
            rows[f"{name}, {size}"] = row
            print(f"{name}, {size}", json.dumps(row), flush=True)
    found = {
        "what": "medians of the processor time of all threads; error against float64",
        "jax": jax.__version__,
        "backend": jax.default_backend(),
        "machine": platform.machine(),
        "processor instructions for 16 bits": processor_instructions(),
        "rounds": options.rounds,
        "rows": rows,
    }
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
