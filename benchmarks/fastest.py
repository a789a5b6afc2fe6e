"""Time of models converted with ``placement="fastest"``, against the plain models.

Prices are those of the machine. Every pair is interleaved; the clock is the processor
time of one thread.

    python -m benchmarks.fastest --out benchmarks/results/fastest.json
"""

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import amprewrite
from amprewrite.errors import AmpWarning
from amprewrite.measure.timing import processor
from benchmarks import zoo

SMALL = zoo.Size(width=64, layers=2, vocabulary=200, side=32)
LARGE = zoo.Size(width=256, layers=3, vocabulary=500, side=64)

CASES = {
    **{f"{name}, small": (name, SMALL, 1, 16) for name in zoo.ZOO},
    **{
        f"{name}, large": (name, LARGE, 4, 64)
        for name in ("bert", "gpt2", "llama", "resnet", "t5", "unet", "vit")
    },
}
"""Model, size, batch and tokens, by name."""

CALLS = 0.01
"""Least seconds of a timed chunk of calls."""


def paired(one: Callable[[], object], two: Callable[[], object], rounds: int) -> float:
    """Return the median ratio of the times of two calls, interleaved."""

    def timed(run: Callable[[], object], calls: int) -> float:
        start = time.thread_time()
        for _ in range(calls):
            run()
        return time.thread_time() - start

    timed(one, 2)
    timed(two, 2)
    calls = max(int(CALLS / timed(two, 1)), 1)
    ratios: list[float] = []
    for number in range(rounds):
        pair = [(one, 0), (two, 1)][:: 1 - 2 * (number % 2)]
        seconds = {key: timed(run, calls) for run, key in pair}
        ratios.append(seconds[0] / seconds[1])
    return statistics.median(ratios)


def measure(name: str, rounds: int) -> dict[str, Any]:
    """Return the time of a converted model over the plain one, and its plan."""
    model, args, kwargs = zoo.build(*CASES[name])
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AmpWarning)  # that float32 is the fastest
        converted = amprewrite.convert(
            model, args=args, kwargs=kwargs, placement="fastest"
        )
    seconds = time.perf_counter() - start
    with torch.no_grad():
        ratio = paired(
            lambda: converted(*args, **kwargs), lambda: model(*args, **kwargs), rounds
        )
    plan = converted.plan
    return {
        "time / float32": round(ratio, 3),
        "chosen": plan.timed[0].name if plan.timed else "by prices",
        "candidates": len(plan.timed),
        "lowered": len(plan.lowered),
        "conversion seconds": round(seconds, 1),
    }


def main() -> None:
    """Measure and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="+", default=CASES, metavar="NAME")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.pop("AMPREWRITE_PRICES", None)
    name, instructions = processor()
    rows: dict[str, dict[str, Any]] = {}
    found = {
        "what": "medians of paired ratios; one thread, eager, inference",
        "processor": f"{name} ({instructions})",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "rows": rows,
    }
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder  # nothing timed before counts
        for case in options.cases:
            rows[case] = measure(case, options.rounds)
            print(case, rows[case], flush=True)
            if options.out:
                options.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
