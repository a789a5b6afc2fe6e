"""Overhead of an eager call of a converted model: a constant, and a part for each op.

Chains of ops on small tensors run as a converted model, as the model itself, and as the
same ops in a function written by hand, which reads its weights from local variables:
the least that Python takes. The least times of the shortest and of the longest chain
give microseconds an op, and a call without its ops; those of the converted model, less
those of the function, are the overhead. Least times, because overhead does not vary:
other work of the machine does.

    python -m benchmarks.overhead --out benchmarks/results/overhead.json
"""

import argparse
import json
import math
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import amprewrite

LENGTHS = (1, 16, 128)
"""Number of layers in a chain."""

OPS = 2
"""Ops in a layer: a product with a weight and a sum."""

Run = Callable[[], object]


class Chain(nn.Module):
    """A chain of layers; each reads a weight."""

    def __init__(self, length: int) -> None:
        """Make ``length`` layers of width 4."""
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(length))

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the chain."""
        for layer in self.layers:
            x = torch.add(layer(x), x)
        return x


def by_hand(model: Chain) -> Callable[[Tensor], Tensor]:
    """Return the ops of a chain as a function with its weights in local variables."""
    weights = {f"w{n}": layer.weight for n, layer in enumerate(model.layers)}
    lines = [f"  x = add(linear(x, {name}), x)" for name in weights]
    body = "\n".join((" def run(x):", *lines, "  return x", " return run"))
    source = f"def make(add, linear, {', '.join(weights)}):\n{body}\n"
    made: dict[str, Any] = {}
    exec(source, made)  # written above
    return made["make"](torch.add, nn.functional.linear, *weights.values())


def variants(length: int) -> dict[str, Run]:
    """Return the forms of one chain, each as a call without arguments."""
    model, x = Chain(length).eval(), torch.ones(1, 4)
    written = by_hand(model)
    low = by_hand(Chain(length).eval().bfloat16())
    low_x = x.bfloat16()
    off = amprewrite.convert(model, "off", args=(x,))
    plan = amprewrite.convert(model, "off", args=(x,), lowering=False)
    bf16 = amprewrite.convert(model, args=(x,))
    return {
        "by hand": lambda: written(x),
        "model": lambda: model(x),
        "off": lambda: off(x),
        "off, lowering=False": lambda: plan(x),
        "bf16 by hand": lambda: low(low_x),
        "bf16": lambda: bf16(x),
    }


def measure(runs: dict[str, Run], rounds: int) -> dict[str, float]:
    """Return the least microseconds of each form over interleaved rounds."""
    found: dict[str, float] = dict.fromkeys(runs, math.inf)
    with torch.no_grad():
        for run in runs.values():
            for _ in range(20):
                run()
        for _ in range(rounds):
            for name, run in runs.items():
                start = time.thread_time_ns()
                for _ in range(10):
                    run()
                passed = (time.thread_time_ns() - start) / 1e4
                found[name] = min(found[name], passed)
    return found


def report(rounds: int) -> dict[str, Any]:
    """Return all measurements with the machine and versions."""
    least = {length: measure(variants(length), rounds) for length in LENGTHS}
    short, long = LENGTHS[0], LENGTHS[-1]
    lines: dict[str, Any] = {}
    for name, start in least[short].items():
        slope = (least[long][name] - start) / (long - short) / OPS
        call = start - short * OPS * slope
        lines[name] = {"us_a_call": round(call, 2), "us_an_op": round(slope, 3)}
    hand = lines["by hand"]
    overhead = {
        name: {key: round(line[key] - hand[key], 3) for key in line}
        for name, line in lines.items()
        if name in ("model", "off", "off, lowering=False")
    }
    return {
        "what": "least microseconds of a call without its ops, and of an op; overhead: "
        "less those of the ops by hand",
        "machine": platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "rounds": rounds,
        "overhead": overhead,
        "lines": lines,
        "least_us": {str(length): found for length, found in least.items()},
    }


def main() -> None:
    """Measure and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = report(options.rounds)
    print(json.dumps({k: found[k] for k in ("overhead", "lines")}, indent=1))
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
