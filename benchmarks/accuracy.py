"""Error against float64, casts and parameter bytes of every zoo model.

Beside the conversion run what users would use instead, on the same inputs:
torch.autocast and the model cast as a whole.

    python -m benchmarks.accuracy --out benchmarks/results/accuracy.json
"""

import argparse
import copy
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

import amprewrite
from benchmarks import zoo
from tests.torch_programs import relative_error

POLICIES = ("bf16", "autocast-cpu")
"""Policies that are compared."""


def parameter_bytes(module: nn.Module) -> int:
    """Return the bytes of all parameters; a shared one counts once."""
    parameters = {id(p): p for p in module.parameters()}.values()
    return sum(p.numel() * p.element_size() for p in parameters)


def _widen(value: object, dtype: torch.dtype) -> object:
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.to(dtype)
    return value


def run_in(case: zoo.Case, dtype: torch.dtype) -> object:
    """Return what the whole model gives in ``dtype``, or the message of its failure."""
    model, args, kwargs = case
    try:
        return copy.deepcopy(model).to(dtype)(
            *(_widen(a, dtype) for a in args),
            **{key: _widen(value, dtype) for key, value in kwargs.items()},
        )
    except (RuntimeError, ValueError) as error:
        return str(error).split("\n")[0]


def under_autocast(case: zoo.Case) -> object:
    """Return what the model gives under autocast, or the message of its failure.

    Processors without instructions for bfloat16 have no kernel for some layers.
    """
    model, args, kwargs = case
    try:
        with torch.autocast("cpu", torch.bfloat16):
            return model(*args, **kwargs)
    except RuntimeError as error:
        return str(error).split("\n")[0]


def ratio(error: float, baseline: float | str) -> float | None:
    """Return the error in units of the baseline's; None where that failed."""
    return None if isinstance(baseline, str) else error / baseline


def measure(name: str) -> dict[str, Any]:
    """Return the figures of one model."""
    case = zoo.build(name, zoo.TINY, 2, 16)
    model, args, kwargs = case
    row: dict[str, Any] = {"reference": "float64", "policies": {}}
    with torch.no_grad():
        expected = run_in(case, torch.float64)
        if isinstance(expected, str):
            row["reference"] = f"float32, because in float64: {expected}"
            expected = model(*args, **kwargs)
        for baseline, found in (
            ("autocast", under_autocast(case)),
            ("cast everything", run_in(case, torch.bfloat16)),
        ):
            fails = isinstance(found, str)
            row[baseline] = found if fails else relative_error(found, expected)
        for policy in POLICIES:
            converted = amprewrite.convert(model, policy, args=args, kwargs=kwargs)
            error = relative_error(converted(*args, **kwargs), expected)
            plan = converted.plan
            row["policies"][policy] = {
                "error": error,
                "error / autocast": ratio(error, row["autocast"]),
                "lowered": len(plan.lowered),
                "ops": len(plan.decisions),
                "casts": plan.cost.casts,
                "weight casts": sum(c.is_weight for c in plan.runtime_casts),
                "parameter bytes / float32": parameter_bytes(converted)
                / parameter_bytes(model),
            }
    return row


def main() -> None:
    """Measure and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(zoo.ZOO))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = {name: measure(name) for name in options.models}
    for name, row in rows.items():
        found = row["policies"].items()
        ratios = {key: part["error / autocast"] for key, part in found}
        print(name, ratios)
    found = {
        "what": "relative L2 error over all float outputs, size TINY, unit gain",
        "torch": torch.__version__,
        "transformers": zoo.transformers.__version__,
        "rows": rows,
    }
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
