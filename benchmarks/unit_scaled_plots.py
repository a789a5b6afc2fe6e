"""Draws what the runs of unit-scaled models gave, from their JSON files.

    python -m benchmarks.unit_scaled_plots --out docs

writes ``learning_rate_transfer.svg`` and ``unit_scaled_training.svg``.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks.unit_scaled_training import BETWEEN

RESULTS = Path(__file__).with_name("results")
MOST = 4.0
"""Largest loss that is drawn, near that of a model that learnt nothing."""


def learning_rate_transfer(found: dict[str, Any]) -> Figure:
    """Return the held-out loss over the learning rate, a line for each width."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, model in zip(panels, ("plain", "unit-scaled"), strict=True):
        rows = [row for row in found["rows"] if row["model"] == model]
        widths = sorted({row["width"] for row in rows})
        for number, width in enumerate(widths):
            line = {r["rate"]: r["held out"] for r in rows if r["width"] == width}
            colour = f"C{number}"
            rates = sorted(line)
            label = f"width {width}"
            axes.plot(
                rates, [line[r] for r in rates], "o-", c=colour, ms=3, label=label
            )
            best = min(line, key=lambda rate: line[rate])
            axes.plot([best], [line[best]], "*", c=colour, ms=12)
        axes.set_xscale("log", base=2)
        axes.set_ylim(2.2, MOST)
        axes.set_title(f"{model}, best rates as stars")
        axes.set_xlabel("learning rate")
    panels[0].set_ylabel(f"loss after {found['steps']} steps")
    panels[0].legend(frameon=False)
    return figure


def unit_scaled_training(found: dict[str, Any]) -> Figure:
    """Return the losses while the runs of seed 0 train, at the best rates."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, model in zip(panels, ("plain", "unit-scaled"), strict=True):
        rows = [r for r in found["rows"] if r["model"] == model and r["seed"] == 0]
        (rate,) = {row["rate"] for row in rows if row["policy"]}
        for row in rows:
            if row["rate"] == rate:
                steps = [BETWEEN * (i + 0.5) for i in range(len(row["losses"]))]
                axes.plot(steps, row["losses"], label=label_of(row), lw=1)
        axes.set_ylim(1.8, 2 * MOST)
        axes.set_title(f"{model}, learning rate {rate:.2g}")
        axes.set_xlabel("step")
        axes.legend(frameon=False, fontsize=8)
    panels[0].set_ylabel(f"loss, mean of {BETWEEN} steps")
    return figure


def label_of(row: dict[str, Any]) -> str:
    """Return how a run computes, for a legend."""
    name = row["policy"].removeprefix("simulate ") or "float32"
    divisor = row["divisor"]
    return name if divisor == 1 else f"{name}, loss / {divisor:g}"


def main() -> None:
    """Draw both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    out: Path = parser.parse_args().out
    mpl.rcParams["svg.hashsalt"] = "amprewrite"  # the same file for the same figures
    for draw in (learning_rate_transfer, unit_scaled_training):
        source = RESULTS / f"{draw.__name__}.json"
        figure = draw(json.loads(source.read_text("utf-8")))
        figure.savefig(out / f"{draw.__name__}.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
