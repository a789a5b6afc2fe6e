"""Two defaults compared: placement promote, and optimal within autocast's error.

    python -m benchmarks.defaults --out benchmarks/results/defaults.json

For each torch model of the zoo: errors against float64 on the arguments of the
conversion and on others, beside autocast and the model cast as a whole; bytes and casts
by the prices of the package's default table, which stand for time; and processor
seconds of the conversion. A model is saved as soon as it is measured.
"""

import argparse
import json
import time
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import torch

import amprewrite
from amprewrite.errors import ToleranceError
from benchmarks import zoo
from benchmarks.accuracy import run_in, under_autocast
from tests.torch_programs import relative_error

PLACEMENTS: dict[str, dict[str, Any]] = {
    "promote": {"placement": "promote"},
    "optimal, tolerance autocast": {"placement": "optimal", "tolerance": "autocast"},
}
PROMOTE, OPTIMAL = PLACEMENTS

BATCH, TOKENS = 2, 16


def _errors(case: zoo.Case, converted: dict[str, Any]) -> dict[str, float | str]:
    """Return relative L2 errors of all forms, or the message of a failure."""
    model, args, kwargs = case
    expected = run_in(case, torch.float64)
    if isinstance(expected, str):
        expected = model(*args, **kwargs)
    found: dict[str, Any] = {
        "autocast": under_autocast(case),
        "cast everything": run_in(case, torch.bfloat16),
    }
    found |= {name: made(*args, **kwargs) for name, made in converted.items()}
    return {
        name: output if isinstance(output, str) else relative_error(output, expected)
        for name, output in found.items()
    }


def _other(value: Any) -> Any:  # noqa: ANN401  # an argument of any model
    """Return another argument of the same kind: drawn anew, numbers in their range."""
    if not isinstance(value, torch.Tensor) or value.dtype == torch.bool:
        return value
    if value.is_floating_point():
        return torch.randn_like(value)
    low, high = int(value.min()), int(value.max()) + 1
    return torch.randint_like(value, low, high)


def measure(name: str) -> dict[str, Any]:
    """Return the figures of one model."""
    case = zoo.build(name, zoo.TINY, BATCH, TOKENS)
    model, args, kwargs = case
    rows: dict[str, Any] = {}
    made: dict[str, Any] = {}
    amprewrite.convert(model, args=args, kwargs=kwargs)  # torch loads some of itself
    for placement, options in PLACEMENTS.items():
        start = time.thread_time()
        try:
            found = amprewrite.convert(model, args=args, kwargs=kwargs, **options)
        except ToleranceError as error:
            rows[placement] = {"refused": str(error)}
            continue
        made[placement] = found
        seconds = time.thread_time() - start
        plan = made[placement].plan
        rows[placement] = {
            "total bytes": plan.cost.total_bytes,
            "casts": plan.cost.casts,
            "lowered": len(plan.lowered),
            "seconds": round(seconds, 3),
        }
    with torch.no_grad():
        on_these = _errors(case, made)
        torch.manual_seed(1)
        others = tuple(map(_other, args)), {k: _other(x) for k, x in kwargs.items()}
        on_others = _errors((model, *others), made)
    row = {"errors": on_these, "errors on other arguments": on_others, "plans": rows}
    if OPTIMAL in made:
        for what, key in (("bytes", "total bytes"), ("seconds", "seconds")):
            row[f"{what}, optimal / promote"] = rows[OPTIMAL][key] / rows[PROMOTE][key]
    return row


def summary(rows: dict[str, Any]) -> dict[str, Any]:
    """Return the geometric means over all models, and the worst of each."""
    found: dict[str, Any] = {"models": len(rows)}
    for key in ("bytes, optimal / promote", "seconds, optimal / promote"):
        ratios = [row[key] for row in rows.values() if key in row]
        if not ratios:
            continue
        found[key] = {"mean": geometric_mean(ratios), "largest": max(ratios)}
    for where in ("errors", "errors on other arguments"):
        for name in (PROMOTE, OPTIMAL, "cast everything"):
            ratios = [
                row[where][name] / row[where]["autocast"]
                for row in rows.values()
                if not isinstance(row[where]["autocast"], str)
                and not isinstance(row[where].get(name, ""), str)
                and row[where][name]
            ]
            if not ratios:
                continue
            found[f"{where}, {name} / autocast"] = {
                "mean": geometric_mean(ratios),
                "largest": max(ratios),
                "models": len(ratios),
            }
    return found


def main() -> None:
    """Measure and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(zoo.ZOO))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: dict[str, Any] = {}
    for name in options.models:
        rows[name] = measure(name)
        print(name, json.dumps(rows[name]), flush=True)
        found = {
            "what": "size TINY, unit gain, bf16; 0 is the error of a plan without low "
            "ops where the reference is float32",
            "prices": "AMPREWRITE_PRICES=default",
            "torch": torch.__version__,
            "summary": summary(rows),
            "rows": rows,
        }
        if options.out:
            options.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
