"""Time of a conversion, and of emission, against the trace and lowering by JAX.

python -m benchmarks.jax_conversion --out benchmarks/results/jax_conversion.json
"""

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax

import amprewrite
from amprewrite.dispatch import planner
from amprewrite.frameworks.jaxpr.interpret.pipeline import Prepared, prepare
from benchmarks import jax_zoo

DEPTHS = (1, 4, 12, 48)
"""Layers of the transformer by which linearity is judged."""


def _seconds(run: Callable[[], Any]) -> tuple[float, Any]:
    start = time.thread_time()
    result = run()
    return time.thread_time() - start, result


def measure(case: jax_zoo.Case, rounds: int) -> dict[str, Any]:
    """Return the least seconds of each part, and ratios; other processes only add.

    A conversion traces the function once, by the same cache as ``jax.jit``; what it
    adds is the plan, made once, and the emission, each time that JAX traces the
    converted function.
    """
    function, args = case
    plan = planner("bf16")
    seconds: dict[str, list[float]] = {}
    ops = 0

    def timed(name: str, run: Callable[[], Any]) -> Any:
        spent, result = _seconds(run)
        seconds.setdefault(name, []).append(spent)
        return result

    for _ in range(rounds):
        jax.clear_caches()
        traced = timed("trace", lambda: jax.jit(partial(function)).trace(*args))
        timed("lower", traced.lower)
        closed = traced.jaxpr
        make = partial(prepare, closed, plan, training=True, captured="")
        prepared = timed("plan", make)
        again = timed("emit", partial(_emitted, prepared, jax.tree.leaves(args)))
        timed("lower the converted", again.lower)
        ops = len(prepared.plan.decisions)
    found: dict[str, Any] = {k: min(v) for k, v in seconds.items()}
    added, own = found["plan"] + found["emit"], found["trace"] + found["lower"]
    return {
        **found,
        "(plan + emit) / (trace + lower)": added / own,
        "ops": ops,
        "plan per op": found["plan"] / ops,
    }


def _emitted(prepared: Prepared, arrays: list[Any]) -> Any:
    return jax.jit(lambda *held: prepared.run(held)).trace(*arrays)


def transformer(layers: int) -> jax_zoo.Case:
    """Return the transformer with ``layers`` layers."""
    return jax_zoo.build("transformer", jax_zoo.Size(layers=layers))


def retraces(calls: int = 5) -> int:
    """Return how often a converted function traces the original anew when called."""
    function, args = jax_zoo.build("mlp")
    count = 0

    def counted(*given: Any) -> Any:
        nonlocal count
        count += 1
        return function(*given)

    converted = amprewrite.convert(counted, args=args)
    first = count
    for _ in range(calls):
        converted(*args)
    return count - first


def main() -> None:
    """Measure and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--depths", type=int, nargs="+", default=list(DEPTHS))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    measure(transformer(1), 1)  # JAX loads parts of itself at the first lowering
    rows: dict[str, Any] = {}
    for layers in options.depths:
        name = f"transformer, {layers} layers"
        rows[name] = measure(transformer(layers), options.rounds)
        print(name, {k: round(v, 5) for k, v in rows[name].items()}, flush=True)
    found = {
        "what": "least processor seconds of one thread, without the trace itself",
        "jax": jax.__version__,
        "retraces in 5 eager calls": retraces(),
        "rows": rows,
    }
    print("retraces:", found["retraces in 5 eager calls"])
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
