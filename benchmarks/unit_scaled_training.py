"""Training runs of a character GPT, plain and unit-scaled, in float32 and in 8 bits.

The model of examples/unit_scaled_gpt.py at 3 layers of width 128: plain with weights of
0.02 and one learning rate for all parameters, or unit-scaled by ``unit_scale`` with the
learning rates of u-muP. No run has a loss scale. Both are first trained in float32 at
several learning rates; the best one of each is that of its runs in 8 bits. Runs of one
seed have the same batches, and a learning rate that falls linearly to zero. The loss is
that of text which no run trains on, in the arithmetic of the run.

A plain run whose loss is divided has gradients as small as those of a batch that is so
many times larger. Unit scaling takes the size of the batch out by the rule of the loss.

    python -m benchmarks.unit_scaled_training --out FILE

Runs that the file has are not repeated.
"""

import argparse
import json
import platform
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import amprewrite
from amprewrite.unit_scaling import optim
from examples.unit_scaled_gpt import GPT, Size, batches, numbered_text, unit_scaled

SIZE = Size(width=128, layers=3, heads=4, length=64, batch=8)
RATES = {
    "plain": tuple(2.0**power for power in range(-12, -5)),
    "unit-scaled": tuple(2.0**power for power in range(-5, 0)),
}
"""Learning rates that are tried in float32."""

BETWEEN = 20
"""Steps between two losses that are kept."""


@dataclass(frozen=True)
class Run:
    """One way to train.

    Attributes:
        model: ``plain`` or ``unit-scaled``.
        policy: Policy of ``amprewrite.convert``; empty for float32.
        rate: Learning rate of AdamW at the first step.
        divisor: Number by which the loss is divided.
    """

    model: str
    policy: str
    rate: float
    divisor: float = 1.0


LOW = (
    ("plain", "simulate e4m3/e5m2", 1.0),
    ("plain", "simulate e4m3/e5m2", 256.0),
    ("plain", "simulate e4m3", 1.0),
    ("plain", "simulate e4m3/e5m2 current", 256.0),
    ("unit-scaled", "simulate e4m3/e5m2", 1.0),
    ("unit-scaled", "simulate e4m3", 1.0),
    ("unit-scaled", "unit-fp8", 1.0),
)
"""Model, policy and divisor of the runs in 8 bits."""


def parts_of_text(text: Tensor) -> tuple[Tensor, Tensor]:
    """Return nine tenths to train on, and the rest."""
    cut = len(text) * 9 // 10
    return text[:cut], text[cut:]


def trained(run: Run, size: Size, steps: int, seed: int) -> dict[str, Any]:
    """Train, and return the losses.

    Returns:
        ``losses``: means over :data:`BETWEEN` steps; ``held out``: the mean loss of 16
        batches of other text at the end; ``zeros``: the share of zeros in the last
        gradients of the blocks; ``seconds``.
    """
    start = time.perf_counter()
    text, letters = numbered_text()
    learnt, other = parts_of_text(text)
    torch.manual_seed(seed)
    model, args = GPT(letters, size), next(batches(learnt, size, seed))
    optimizer: torch.optim.Optimizer
    # Adam's eps is divided, too, so that no step depends on the divisor.
    eps = 1e-8 / run.divisor
    if run.model == "unit-scaled":
        model = unit_scaled(model, args, size.layers)
        optimizer = optim.AdamW(model.parameters(), lr=run.rate, eps=eps)
    else:
        parameters = model.parameters()
        optimizer = torch.optim.AdamW(
            parameters, lr=run.rate, eps=eps, weight_decay=0.0
        )
    call: Any = model
    if run.policy:
        call = amprewrite.convert(model, run.policy, args=args, training=True)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
    losses: list[float] = []
    for _, batch in zip(range(steps), batches(learnt, size, seed + 1), strict=False):
        optimizer.zero_grad()
        loss = call(*batch)
        (loss / run.divisor).backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    with torch.no_grad():
        ends = zip(range(16), batches(other, size, 0), strict=False)
        held_out = sum(float(call(*batch)) for _, batch in ends) / 16
    inside = [p.grad for n, p in model.named_parameters() if n.startswith("blocks")]
    gradients = torch.cat([g.flatten() for g in inside if g is not None])
    kept = [losses[i : i + BETWEEN] for i in range(0, steps, BETWEEN)]
    return {
        "losses": [round(sum(part) / len(part), 4) for part in kept],
        "held out": round(held_out, 4),
        "zeros": round(float((gradients == 0).float().mean()), 6),
        "seconds": round(time.perf_counter() - start, 1),
    }


class Table:
    """Rows in a file, which is written after each."""

    def __init__(self, path: Path, head: dict[str, Any]) -> None:
        """Read the rows that the file has, if they were measured with the same head."""
        self.path, self.head, self.rows = path, head, list[dict[str, Any]]()
        if path.exists():
            held = json.loads(path.read_text("utf-8"))
            rows = held.pop("rows")
            if held == head:
                self.rows = rows

    def row(self, key: dict[str, Any], measure: Callable[[], Any]) -> dict[str, Any]:
        """Return the row with these entries; measure and write it if there is none."""
        for row in self.rows:
            if key.items() <= row.items():
                return row
        self.rows.append({**key, **measure()})
        print({k: v for k, v in self.rows[-1].items() if k != "losses"}, flush=True)
        text = json.dumps({**self.head, "rows": self.rows}, indent=1) + "\n"
        self.path.write_text(text, encoding="utf-8")
        return self.rows[-1]


def measure(table: Table, size: Size, steps: int, seeds: int) -> None:
    """Fill a table: runs in float32 first, then those in 8 bits."""

    def held_out(run: Run, seed: int) -> float:
        key = {**asdict(run), "seed": seed}
        row = table.row(key, lambda: trained(run, size, steps, seed))
        return row["held out"]

    best: dict[str, float] = {}
    for model, rates in RATES.items():
        found = {rate: held_out(Run(model, "", rate), 0) for rate in rates}
        best[model] = min(found, key=lambda rate: found[rate])
    for seed in range(seeds):
        for model, rate in best.items():
            held_out(Run(model, "", rate), seed)
        for model, policy, divisor in LOW:
            held_out(Run(model, policy, best[model], divisor), seed)


def head_of(size: Size, steps: int) -> dict[str, Any]:
    """Return what the figures depend on."""
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        **asdict(size),
        "steps": steps,
    }


def main() -> None:
    """Train, and write the file after each run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seeds", type=int, default=1)
    for name, default in vars(SIZE).items():
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = vars(parser.parse_args())
    out, steps, seeds = asked.pop("out"), asked.pop("steps"), asked.pop("seeds")
    size = Size(**asked)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    measure(Table(out, head_of(size, steps)), size, steps, seeds)


if __name__ == "__main__":
    main()
