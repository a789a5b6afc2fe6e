"""What the accumulate policies gain and cost on models of the zoo, beside autocast.

Errors are relative, of all float outputs together, against the model in float32; bytes
are those of the plans by the prices of eager execution. The models are tiny, with
random weights. Run with ``python -m benchmarks.accumulate --out FILE``.
"""

import argparse
import json
import platform
from pathlib import Path
from typing import Any

import torch

import amprewrite
from benchmarks import zoo
from tests.torch_programs import in_full, relative_error, under_autocast

MODELS = ("mlp", "bert", "gpt2", "llama", "vit", "swin", "nn_transformer")
POLICIES = ("bf16", "bf16-accumulate")
PLACEMENTS = ("promote", "optimal")


def measure(name: str) -> dict[str, Any]:
    """Return the error and the bytes of a model by policy and placement."""
    model, args, kwargs = zoo.build(name, zoo.TINY, 4, 32)
    reference = in_full(model, *args, **kwargs)
    loose = relative_error(under_autocast(model, *args, **kwargs), reference)
    row: dict[str, Any] = {"autocast": {"relative error": float(f"{loose:.2e}")}}
    for policy in POLICIES:
        for placement in PLACEMENTS:
            given: Any = {"args": args, "kwargs": kwargs, "placement": placement}
            converted = amprewrite.convert(model, policy, **given)
            with torch.no_grad():
                error = relative_error(converted(*args, **kwargs), reference)
            cost = converted.plan.cost
            row[f"{policy}, {placement}"] = {
                "relative error": float(f"{error:.2e}"),
                "casts": cost.casts,
                "total bytes": cost.total_bytes,
            }
    return row


def main() -> None:
    """Measure and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found: dict[str, Any] = {
        "what": "bytes by the prices of eager execution; see docs/placement.md",
        "machine": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "models": {name: measure(name) for name in MODELS},
    }
    for name, row in found["models"].items():
        print(name, row)
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
