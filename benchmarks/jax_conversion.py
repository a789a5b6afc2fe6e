"""Time of a conversion, and of emission, against the trace and lowering by JAX.

    python -m benchmarks.jax_conversion --out benchmarks/results/jax_conversion.json

Two tables: the parts of a conversion by depth, and for each program the whole way to
the jaxpr of its converted form (trace, plan, emission) and the compilation by XLA, each
relative to that of the program in float32. Beside it the same function is compiled with
everything cast: all its float arguments are cast to bfloat16, and its results back. It
is what a program in low precision costs XLA at least, without any choice of ours.
"""

import argparse
import gc
import importlib.util
import json
import os
import platform
import re
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.scipy.optimize import minimize

import amprewrite
from amprewrite.dispatch import planner
from amprewrite.frameworks.jaxpr.interpret.pipeline import Prepared, prepare
from benchmarks import jax_compiled, jax_modules, jax_zoo

STEPS = 5
"""Steps of each solver."""

DEPTHS = (1, 4, 12, 48)
"""Layers of the transformer by which linearity is judged."""


def _seconds(run: Callable[[], Any]) -> tuple[float, Any]:
    start = time.thread_time()
    result = run()
    return time.thread_time() - start, result


def measure(case: jax_zoo.Case, rounds: int) -> dict[str, Any]:
    """Return the least seconds of each part, and ratios; other processes only add.

    A conversion traces the function by the same cache as ``jax.jit``; what it adds is a
    second trace, in low precision, which is not in the figures of the parts, the plan,
    made once, and the emission, each time that JAX traces the converted function.
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


def _fit(size: jax_zoo.Size) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return the mean square error of a perceptron, and its arguments."""
    function, (params, x) = jax_zoo.mlp(size)

    def loss(params: Any, x: Any, y: Any) -> Any:
        return jnp.mean((function(params, x) - y) ** 2)

    return loss, (params, x, jnp.ones_like(x))


def optax_lbfgs(size: jax_zoo.Size) -> jax_zoo.Case:
    """Return five steps of optax's L-BFGS, with its line search, in a loop."""
    loss, args = _fit(size)
    solver = optax.lbfgs()

    def solve(params: Any, x: Any, y: Any) -> Any:
        def value(params: Any) -> Any:
            return loss(params, x, y)

        both = optax.value_and_grad_from_state(value)

        def step(carry: Any) -> Any:
            params, state = carry
            found, grad = both(params, state=state)
            updates, state = solver.update(
                grad, state, params, value=found, grad=grad, value_fn=value
            )
            return optax.apply_updates(params, updates), state

        def goes_on(carry: Any) -> Any:
            return optax.tree.get(carry[1], "count") < STEPS

        return jax.lax.while_loop(goes_on, step, (params, solver.init(params)))[0]

    return solve, args


def scipy_bfgs(size: jax_zoo.Size) -> jax_zoo.Case:
    """Return BFGS of ``jax.scipy`` on a quadratic form."""
    matrix = jax.random.normal(jax.random.key(7), (size.width, size.width))

    def solve(matrix: Any, x: Any) -> Any:
        def value(x: Any) -> Any:
            return jnp.sum((matrix @ x - 1) ** 2) / size.width

        return minimize(value, x, method="BFGS", options={"maxiter": STEPS}).x

    return solve, (matrix, jnp.ones(size.width))


def jaxopt_lbfgs(size: jax_zoo.Size) -> jax_zoo.Case:
    """Return five steps of jaxopt's L-BFGS, with its line search."""
    jaxopt: Any = importlib.import_module("jaxopt")
    loss, args = _fit(size)

    def solve(*args: Any) -> Any:
        return jaxopt.LBFGS(loss, maxiter=STEPS).run(*args).params

    return solve, args


PROGRAMS: dict[str, Callable[[jax_zoo.Size], jax_zoo.Case]] = {
    **jax_compiled.BUILDERS,
    **jax_modules.MODULES,
    "linen_transformer, gradient": jax_compiled.gradient(
        jax_modules.MODULES["linen_transformer"]
    ),
    "optax_lbfgs": optax_lbfgs,
    "scipy_bfgs": scipy_bfgs,
    **({"jaxopt_lbfgs": jaxopt_lbfgs} if importlib.util.find_spec("jaxopt") else {}),
}
"""Programs to compare with their float32 form; jaxopt's where it is installed."""


def everything_cast(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function`` on its float32 arguments cast to bfloat16, cast back after.

    It is what ``mpx.cast_function`` makes of it.
    """

    def cast(tree: Any, old: Any, new: Any) -> Any:
        def leaf(x: Any) -> Any:
            return x.astype(new) if getattr(x, "dtype", None) == old else x

        return jax.tree.map(leaf, tree)

    def run(*args: Any) -> Any:
        made = function(*cast(args, jnp.float32, jnp.bfloat16))
        return cast(made, jnp.bfloat16, jnp.float32)

    return run


def _cast_trace(case: jax_zoo.Case) -> Any:
    """Return the trace with everything cast; None where the function refuses it.

    A solver does whose loop begins with a float32 number of its own.
    """
    function, args = case
    try:
        return jax.jit(everything_cast(function)).trace(*args)
    except TypeError:
        return None


def against_float32(case: jax_zoo.Case, rounds: int) -> dict[str, Any]:
    """Return the medians of the paired ratios of a program to its float32 form.

    Each starts with empty caches of JAX, and without the garbage collector, as in
    ``timeit``. XLA compiles in several threads: of it, the time of the process counts.
    """
    function, args = case
    rows: list[dict[str, float]] = []
    counts: dict[str, Any] = {}
    made: Any = None
    for _ in range(rounds):
        row: dict[str, float] = {}
        jax.clear_caches()
        gc.collect()
        gc.disable()
        row["trace"], plain = _seconds(lambda: jax.jit(partial(function)).trace(*args))
        row["compile"], counts["float32"] = _compiled(plain)
        jax.clear_caches()
        gc.collect()
        if (low := _cast_trace(case)) is not None:
            found = _compiled(low)
            row["compile everything cast"], counts["everything cast"] = found
        jax.clear_caches()
        gc.collect()
        row["convert"], made = _seconds(lambda: amprewrite.convert(function, args=args))
        row["emit"], emitted = _seconds(lambda made=made: jax.jit(made).trace(*args))
        row["compile the converted"], counts["converted"] = _compiled(emitted)
        gc.enable()
        rows.append(row)

    def ratio(top: tuple[str, ...], below: str) -> float:
        return median(sum(row[part] for part in top) / row[below] for row in rows)

    compiled, low = ("compile the converted",), "compile everything cast"
    cast: dict[str, float] = {}
    if low in rows[0]:
        cast["compile everything cast / float32's"] = ratio((low,), "compile")
        cast["compile / everything cast's"] = ratio(compiled, low)
    return {
        **{part: median(row[part] for row in rows) for part in rows[0]},
        "(convert + emit) / trace": ratio(("convert", "emit"), "trace"),
        "emit / trace": ratio(("emit",), "trace"),
        "compile / float32's": ratio(compiled, "compile"),
        **cast,
        "counts": counts,
        "ops": len(made.plan.decisions),
    }


def _compiled(traced: Any) -> tuple[float, dict[str, int]]:
    """Return the processor seconds to lower and compile a trace, and its counts."""
    start = time.process_time()
    compiled = traced.lower().compile()
    return time.process_time() - start, _counts(traced.jaxpr.jaxpr, compiled.as_text())


def _counts(jaxpr: Any, text: str) -> dict[str, int]:
    """Return how many conversions a program has, and kernels that XLA generates.

    A kernel takes XLA for CPUs 20 to 40 ms, whatever its size; equal ones are compiled
    once. The kernels of its libraries are not generated: those of contractions, in
    fusions of kind ``kCustom``.

    Args:
        jaxpr: The traced program.
        text: The compiled module.
    """
    fusions = re.findall(r" fusion\(.*kind=(\w+)", text)
    return {
        "converts in the jaxpr": jax_compiled.converts(jaxpr),
        "converts after optimisation": len(re.findall(r" convert\(", text)),
        "kernels": sum(kind != "kCustom" for kind in fusions),
    }


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
    parser.add_argument("--programs", nargs="+", default=list(PROGRAMS))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    measure(transformer(1), 1)  # JAX loads parts of itself at the first lowering
    rows: dict[str, Any] = {}
    for layers in options.depths:
        name = f"transformer, {layers} layers"
        rows[name] = measure(transformer(layers), options.rounds)
        print(name, {k: round(v, 5) for k, v in rows[name].items()}, flush=True)
    programs: dict[str, Any] = {}
    against_float32(PROGRAMS["mlp"](jax_zoo.TINY), 1)  # the first one loads tables
    for name in options.programs:
        case = PROGRAMS[name](jax_zoo.TINY)
        programs[name] = against_float32(case, options.rounds)
        print(name, json.dumps(programs[name]), flush=True)
    found = {
        "what": "rows: least processor seconds of one thread, by depth, without the "
        "trace itself; programs: medians of paired processor seconds",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, "
        f"{jax.default_backend()}",
        "python": platform.python_version(),
        "jax": jax.__version__,
        "jaxlib": version("jaxlib"),
        "retraces in 5 eager calls": retraces(),
        "rows": rows,
        "programs": programs,
    }
    print("retraces:", found["retraces in 5 eager calls"])
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
