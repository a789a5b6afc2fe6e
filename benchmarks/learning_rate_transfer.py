"""Best learning rates of a character GPT over its width, plain and unit-scaled.

The model of examples/unit_scaled_gpt.py with 2 layers and heads of 16, in float32, at
each width and learning rate: plain with weights of 0.02 and one rate for all parameters
(the standard parametrisation), or unit-scaled with the learning rates of u-muP. Batches
are the same for all. The loss is that of text which no run trains on.

    python -m benchmarks.learning_rate_transfer --out FILE

Runs that the file has are not repeated.
"""

import argparse
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.unit_scaled_training import Run, Table, head_of, trained
from examples.unit_scaled_gpt import Size

WIDTHS = (64, 128, 256, 512)
RATES = {
    "plain": tuple(2.0**power for power in range(-13, -6)),
    "unit-scaled": tuple(2.0**power for power in range(-6, 1)),
}
HEAD = 16
"""Width of a head."""


def size_of(width: int) -> Size:
    """Return the extents of a model of that width."""
    return Size(width=width, layers=2, heads=width // HEAD, length=32, batch=8)


def losses(run: Run, size: Size, steps: int) -> dict[str, Any]:
    """Return the losses of a run, and its seconds."""
    found = trained(run, size, steps, 0)
    del found["zeros"]
    return found


def main() -> None:
    """Train at each width and rate, and write the file after each run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--widths", type=int, nargs="+", default=WIDTHS)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    head = head_of(size_of(0), asked.steps)
    del head["width"], head["heads"]
    table = Table(asked.out, {**head, "head": HEAD})
    for width in asked.widths:
        for model, rates in RATES.items():
            for rate in rates:
                run = Run(model, "", rate)
                table.row(
                    {"width": width, "model": model, "rate": rate},
                    partial(losses, run, size_of(width), asked.steps),
                )


if __name__ == "__main__":
    main()
