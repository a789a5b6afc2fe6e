"""Run the steps in order of worth, each in a process of its own, within a time.

python -m benchmarks.gpu --out FOLDER [--steps NAMES] [--seconds N] [--rehearse]
"""

import argparse
import json
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.gpu.machine import facts
from benchmarks.gpu.table import Table

STEPS: dict[str, tuple[str, float]] = {
    "tests": ("", 0.2),
    "errors": ("benchmarks.gpu.errors", 0.25),
    "speed": ("benchmarks.gpu.speed", 0.35),
    "training": ("benchmarks.gpu.training", 0.3),
    "generation": ("benchmarks.gpu.generation", 0.25),
    "prices": ("benchmarks.gpu.prices", 0.35),
    "jax": ("benchmarks.gpu.jax_training", 0.5),
    "low8": ("benchmarks.gpu.low8", 1.0),
}
"""By name, in order of worth: the module, and its share of the time that is left."""

GRACE = 45.0
"""Seconds that a step has to end after its last row was begun."""


def main() -> int:
    """Run what was asked for; return 1 if a step failed, 0 else."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", default=",".join(STEPS))
    parser.add_argument("--seconds", type=float, default=2400)
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        _measure(options)
        return 0
    names = options.steps.split(",")
    if unknown := [name for name in names if name not in STEPS]:
        parser.error(f"no steps {', '.join(unknown)}; want {', '.join(STEPS)}")
    options.out.mkdir(parents=True, exist_ok=True)
    print(json.dumps(facts()), flush=True)
    return _run_all(names, options)


def _run_all(names: list[str], options: argparse.Namespace) -> int:
    ends = time.monotonic() + options.seconds
    done: dict[str, Any] = {}
    for name in names:
        left = ends - time.monotonic() - GRACE
        if left <= 0:
            done[name] = "skipped: no time was left"
            continue
        last = name == names[-1]
        seconds = left if last else left * STEPS[name][1]
        start = time.monotonic()
        code = _run(name, seconds, options)
        took = round(time.monotonic() - start, 1)
        done[name] = {"exit": code, "seconds": took, "allowed": round(seconds, 1)}
        print(f"== {name}: exit {code} after {took} s", flush=True)
        found = {"machine": facts(), "steps": done}
        path = options.out / "steps.json"
        path.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    failed = [n for n, row in done.items() if isinstance(row, dict) and row["exit"]]
    print(f"failed: {', '.join(failed) or 'none'}", flush=True)
    return 1 if failed else 0


def _run(name: str, seconds: float, options: argparse.Namespace) -> int:
    """Run one step to its end, or stop it after its time; return its exit code."""
    command = _tests(options) if name == "tests" else _again(name, seconds, options)
    try:
        return subprocess.run(command, timeout=seconds + GRACE, check=False).returncode
    except subprocess.TimeoutExpired:
        return 124  # as `timeout` says it


def _tests(options: argparse.Namespace) -> list[str]:
    """Return the command of the tests that need a device."""
    report = f"--junitxml={options.out / 'tests.xml'}"
    plain = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", report]
    if options.rehearse:  # they skip without a device: seen to be found and collected
        return [*plain, "-m", "gpu", "tests/integration/test_gpu.py"]
    # A test module whose libraries are missing must not cost the others.
    return [*plain, "-m", "gpu", "--continue-on-collection-errors", "tests"]


def _again(name: str, seconds: float, options: argparse.Namespace) -> list[str]:
    command = [sys.executable, "-m", "benchmarks.gpu", "--step", name]
    command += ["--out", str(options.out), "--seconds", str(seconds)]
    return [*command, "--rehearse"] if options.rehearse else command


def _measure(options: argparse.Namespace) -> None:
    """Measure one step here."""
    module: Any = import_module(STEPS[options.step][0])
    path = options.out / f"{options.step}.json"
    table = Table(path, module.WHAT, options.seconds)
    device = "cpu" if options.rehearse else "cuda"
    module.measure(table, device, tiny=options.rehearse)


if __name__ == "__main__":
    raise SystemExit(main())
