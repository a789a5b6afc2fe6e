"""Time of a conversion within autocast's error, against one without a tolerance.

python -m benchmarks.planning --out benchmarks/results/planning.json
"""

import argparse
import json
import time
from functools import partial
from pathlib import Path

import torch

import amprewrite
from benchmarks import zoo

MODELS = ("bert", "gpt2", "llama", "mixtral", "resnet", "swin", "t5", "vit", "mamba")

SIZE = zoo.Size(width=128, layers=4, vocabulary=500, side=64)
"""Small extents: on a processor without bfloat16 the runs would hide the planning."""


def measure(name: str) -> dict[str, float]:
    """Return processor seconds of both conversions, and their ratio."""
    model, args, kwargs = zoo.build(name, SIZE, 2, 32)
    convert = partial(
        amprewrite.convert, model.eval(), "bf16", args=args, kwargs=kwargs
    )
    convert()  # torch compiles some functions at the first one
    start = time.thread_time()
    plain = convert()
    middle = time.thread_time()
    convert(tolerance="autocast")
    seconds = middle - start, time.thread_time() - middle
    return {
        "ops": len(plain.plan.decisions),
        "plain": seconds[0],
        "tolerance": seconds[1],
        "tolerance / plain": seconds[1] / seconds[0],
    }


def main() -> None:
    """Measure and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=MODELS, metavar="NAME")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: dict[str, dict[str, float]] = {}
    for name in options.models:
        rows[name] = measure(name)
        print(name, {key: round(n, 2) for key, n in rows[name].items()}, flush=True)
    found = {
        "what": "processor seconds of one thread; 4 layers of width 128, 2 x 32 tokens",
        "torch": torch.__version__,
        "rows": rows,
    }
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
