"""Faults planted in converted programs, and the ops that blame names for them.

Fifty faults in eight architectures and both frameworks: an op whose result is scaled by
1.01 to 1.1, one with a NaN, a layer that leaves the range of float16, a cast through an
8-bit format, and an op in full precision that reads and makes values in low precision.
Which op has the fault is drawn; one that hardly changes the error of the outputs is
drawn again, and counted: blame goes by effect. A row has the place of the op among
those that blame names, and the number of runs. Models without a fault are rows too.

    python -m benchmarks.planted_faults --out benchmarks/results/planted_faults.json
"""

import argparse
import json
import math
import platform
import random
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import amprewrite
from amprewrite.verify import Blame, OpError, Report
from benchmarks import planted_jax, planted_torch

CHANGES = ("scale", "nan", "overflow", "cast", "lost float")
COUNT = 50
GAINS = tuple(2.0**power for power in range(14, 24))
"""Factors on the weights of a layer: the first is taken that leaves float16's range."""

SEEN = 1.2
"""Factor by which a fault changes the error of the outputs, at least."""

DRAWS = 8
"""Number of ops that are drawn, if none of them changes the outputs that much."""

SIDES: dict[str, Any] = {"torch": planted_torch, "jax": planted_jax}


@dataclass(frozen=True)
class Fault:
    """One fault: where it is planted, and its kind."""

    framework: str
    model: str
    change: str
    amount: float
    seed: int


def faults(count: int = COUNT) -> Iterator[Fault]:
    """Yield the faults: frameworks, models and kinds in turn."""
    names = tuple(planted_torch.MODELS)
    for number in range(count):
        framework = ("torch", "jax")[number % 2]
        turn = number // 2
        change = CHANGES[(turn + turn // len(names)) % len(CHANGES)]
        amount = (1.01, 1.03, 1.1)[turn % 3]
        yield Fault(framework, names[turn % len(names)], change, amount, number)


def verified(fault: Fault, op: str) -> tuple[Report, Any]:
    """Return the report on a model with a fault in ``op``, and its blame."""
    side = SIDES[fault.framework]
    overflows = fault.change == "overflow"
    model, args = side.model_of(fault.model, fault.amount if overflows else 1)
    policy = "fp16" if overflows else "bf16"
    converted = amprewrite.convert(model, policy, args=args)
    inside: Any = nullcontext()
    if fault.change != "overflow" and op:
        if fault.framework == "jax":
            reader = op.rpartition(" for ")[2]
            inside = planted_jax.planted(reader, fault.change, fault.amount)
        else:
            planted_torch.plant(converted, args, op, fault.change, fault.amount)
    with inside:
        report = amprewrite.verify(model, converted, args)
        return report, report.blame(top=3)


def places(fault: Fault, clean: Report) -> list[str]:
    """Return the ops in which a fault of this kind can be planted."""
    assert clean.live is not None
    plan = clean.live.ablation.plan
    rows = {row.op: row for row in clean.ops}
    if fault.change == "cast":
        casts = [r for r in clean.ops if r.canonical == "cast" and r.own > 0]
        return [r.op for r in casts if fault.framework == "torch" or _first(clean, r)]
    ops = [d for d in plan.decisions if d.op in rows and d.op_class != "follow"]
    if fault.change == "lost float":
        return [d.op for d in ops if d.precision == "float32" and rows[d.op].own > 0]
    return [d.op for d in ops if rows[d.op].own > 0]


def _first(clean: Report, cast: OpError) -> bool:
    """Return whether a cast in JAX is of the first operand of its reader.

    Contractions cast weights themselves, where no cast can be planted.
    """
    assert clean.live is not None
    graph = clean.live.ablation.graph
    value, _, reader = cast.op.rpartition(" for ")
    op = graph.op_by_name.get(reader)
    return op is not None and op.operands[0] == value and value in graph.producer


def overflowing(report: Report) -> str:
    """Return the first op with a result beyond the range of its format, if any.

    If only weights and inputs are, it is the op that reads the first of them.
    """
    rows = [r for r in report.ops if r.headroom is not None and r.headroom < 0]
    made = [row.op for row in rows if not row.inserted]
    read = [reader for row in rows if row.inserted for reader in row.readers]
    return next(iter((*made, *read)), "")


def overflown(fault: Fault) -> tuple[str, Report, Blame]:
    """Return the op that overflows at the smallest gain that makes one, the reports."""
    first, *others = GAINS
    report, blame = verified(replace(fault, amount=first), "")
    for gain in others:
        if overflowing(report) and not math.isfinite(report.error):
            break
        report, blame = verified(replace(fault, amount=gain), "")
    return overflowing(report), report, blame


def tried(fault: Fault) -> dict[str, Any]:
    """Return the row of one fault."""
    start = time.perf_counter()
    draws, redrawn = random.Random(fault.seed), 0
    if fault.change == "overflow":
        op, report, blame = overflown(fault)
    else:
        clean = clean_report(fault.framework, fault.model)
        choices = places(fault, clean)
        draws.shuffle(choices)
        found = []
        for op in choices[:DRAWS]:
            report, blame = verified(fault, op)
            found.append((report.error, op, report, blame))
            if not report.error < SEEN * clean.error:
                break
        redrawn = len(found) - 1
        worst = max(found, key=lambda one: math.inf if one[0] != one[0] else one[0])
        _, op, report, blame = worst
    named = [entry.op for entry in blame]
    return {
        "framework": fault.framework,
        "model": fault.model,
        "fault": fault.change,
        "amount": fault.amount if fault.change == "scale" else None,
        "op": op,
        "place": named.index(op) + 1 if op in named else None,
        "named": named,
        "error": report.error if math.isfinite(report.error) else str(report.error),
        "runs": blame.runs,
        "limit": math.ceil(math.log2(max(blame.ops, 2))) + 3,
        "ops": blame.ops,
        "redrawn": redrawn,
        "seconds": round(time.perf_counter() - start, 2),
    }


@cache
def clean_report(framework: str, name: str) -> Report:
    """Return the report on a model without a fault."""
    model, args = SIDES[framework].model_of(name, 1)
    return amprewrite.verify(model, amprewrite.convert(model, args=args), args)


def sound(framework: str, name: str) -> dict[str, Any]:
    """Return the row of a model without a fault."""
    report = clean_report(framework, name)
    blame = report.blame(top=3)
    faulty = [entry.op for entry in blame if entry.fault]
    return {
        "framework": framework,
        "model": name,
        "ok": report.ok,
        "faults": faulty,
        "runs": blame.runs,
        "error": report.error,
    }


def summary_of(
    rows: list[dict[str, Any]], sound: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return the counts, with all rows."""
    return {
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        **{name: version(name) for name in ("torch", "jax")},
        "faults": len(rows),
        "first": sum(row["place"] == 1 for row in rows),
        "among three": sum(row["place"] is not None for row in rows),
        "within the runs": sum(row["runs"] <= row["limit"] for row in rows),
        "sound models": len(sound),
        "sound models blamed for a fault": sum(bool(row["faults"]) for row in sound),
        "rows": rows,
        "sound": sound,
    }


def written(path: Path | None, found: dict[str, Any]) -> None:
    """Write what was found until now."""
    if path:
        path.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


def main() -> None:
    """Write all rows, and the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--only", default="", help="framework of the rows")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rows: list[dict[str, Any]] = []
    for fault in faults(options.count):
        if options.only in ("", fault.framework):
            rows.append(tried(fault))
            print(rows[-1], file=sys.stderr, flush=True)
            written(options.out, summary_of(rows, []))
    clean: list[dict[str, Any]] = []
    for framework in SIDES:
        for name in planted_torch.MODELS if options.only in ("", framework) else ():
            clean.append(sound(framework, name))
            print(clean[-1], file=sys.stderr, flush=True)
            written(options.out, summary_of(rows, clean))
    found = summary_of(rows, clean)
    summary = {k: v for k, v in found.items() if k not in ("rows", "sound")}
    print(json.dumps(summary, indent=1))


if __name__ == "__main__":
    main()
