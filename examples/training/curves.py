"""The command line of the examples here: progress bars, and a plot of the losses."""

import argparse
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

KINDS = ("float32", "converted", "everything cast")
"""Three runs from the same start, on the same batches.

``everything cast`` is what is done without a compiler: all that floats in bfloat16.
"""

Train = Callable[[str, int, int], Iterator[float]]
"""Takes a kind, a seed and a number of steps; yields the loss of each step."""


def final(losses: list[float]) -> float:
    """Return the mean of the last tenth: one batch's loss says little."""
    return float(np.mean(losses[-max(1, len(losses) // 10) :]))


def main(train: Train, steps: int) -> None:
    """Train each way, print what became of the loss, draw it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("losses.svg"))
    options = parser.parse_args()
    if find_spec("matplotlib") is None:  # said now, not after the training
        parser.error("the plot needs matplotlib; pip install 'amprewrite[plot]'")

    losses: dict[str, list[float]] = {kind: [] for kind in KINDS}
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} loss {task.fields[loss]}"),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Progress(*columns) as progress:
        for kind, found in losses.items():
            task = progress.add_task(kind, total=options.steps, loss="")
            for loss in train(kind, options.seed, options.steps):
                found.append(loss)
                progress.update(task, advance=1, loss=f"{loss:.3f}")
    for kind, found in losses.items():
        print(f"{kind}: loss {found[0]:.3f} to {final(found):.3f}")
    draw(losses, options.out)


def draw(losses: dict[str, list[float]], path: Path) -> None:
    """Write a plot of losses against steps; the suffix of ``path`` says which kind."""
    from matplotlib.figure import Figure  # noqa: PLC0415  # pip install amprewrite[plot]

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for (kind, found), style in zip(losses.items(), ("-", "--", ":"), strict=True):
        axes.plot(found, style, label=kind)
    axes.set(xlabel="step", ylabel="loss", yscale="log")
    axes.legend()
    figure.savefig(path)
