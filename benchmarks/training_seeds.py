"""Where training ends in float32, converted to bf16 and with everything cast, by seed.

Runs ``train`` of the scripts in examples/training. A seed chooses the first weights and
the batches, the same ones for each kind, so a kind's difference from float32 is that
between two runs of one seed; the spread of float32 over seeds is what it is held
against. The final loss is the mean over the last tenth of the steps.

    python -m benchmarks.training_seeds --out benchmarks/results/training_seeds.json
"""

import argparse
import json
import platform
import statistics
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

EXAMPLES = Path(__file__).parents[1] / "examples" / "training"
NAMES = ("digits_cnn_torch", "char_gpt_torch", "digits_vit_equinox", "digits_vit_nnx")
"""Examples that are run."""

CAST = {
    "torch": "weights and the optimizer's state are stored in bfloat16",
    "equinox": "bfloat16 copies of float32 weights, as mpx and jmp make them",
    "nnx": "bfloat16 copies of float32 weights, as mpx and jmp make them",
}
"""What casting everything means, by library."""


def finals(name: str, kind: str, seeds: range, steps: int) -> list[float]:
    """Return the final loss of an example for each seed."""
    train, final = import_module(name).train, import_module("curves").final
    return [final(list(train(kind, seed, steps))) for seed in seeds]


def compared(losses: list[float], full: list[float]) -> dict[str, Any]:
    """Return final losses, and how they differ from those of float32."""
    differences = [low - high for low, high in zip(losses, full, strict=True)]
    return {
        "final losses": losses,
        "mean difference": statistics.mean(differences),
        "largest difference": max(differences, key=abs),
        "within the spread": abs(statistics.mean(differences)) < statistics.stdev(full),
    }


def measure(name: str, seeds: range, steps: int) -> dict[str, Any]:
    """Return one example's row."""
    full, converted, cast = (
        finals(name, kind, seeds, steps) for kind in import_module("curves").KINDS
    )
    return {
        "float32": {
            "final losses": full,
            "mean": statistics.mean(full),
            "standard deviation": statistics.stdev(full),
        },
        "converted": compared(converted, full),
        "everything cast": {
            "how": CAST[name.rsplit("_", 1)[1]],
            **compared(cast, full),
        },
    }


def main() -> None:
    """Measure and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--names", nargs="+", default=NAMES)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    sys.path.insert(0, str(EXAMPLES))
    rows = {}
    for name in options.names:
        rows[name] = measure(name, range(options.seeds), options.steps)
        print(name, json.dumps(rows[name], indent=1), flush=True)
    libraries = ("torch", "jax", "equinox", "flax", "optax")
    found = {
        "what": "final training loss; differences from float32 with the same seed",
        "machine": platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        **{library: version(library) for library in libraries},
        "seeds": options.seeds,
        "steps": options.steps,
        "rows": rows,
    }
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
