"""Placements compared: traps, random programs, solver time, models of the zoo.

python -m benchmarks.placement --out benchmarks/results/placement.json
"""

import argparse
import json
import platform
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import scipy

from amprewrite.ir import Op, ProgramGraph, Value
from amprewrite.passes import PLACEMENTS
from amprewrite.passes.analysis.classify import classify
from amprewrite.passes.cost.cost_model import EAGER
from amprewrite.passes.pipeline import output_dtypes, situate
from amprewrite.passes.placement.constraints import find_freedom
from amprewrite.passes.placement.integer_program import IntegerProgram, Solution, solve
from amprewrite.passes.placement.optimal import GAP, build_problem
from amprewrite.plan.sensitivity import Limit
from amprewrite.policy import Matcher, load_policy
from benchmarks.placement_traps import TRAPS, runtime_casts
from tests.properties.placements import brute_force, free_of, price
from tests.properties.test_placements import optimum_of, random_case

KINDS = {
    "matmul": (2, 3), "linear": (2, 3), "add": (2, 4), "mul": (2, 3), "sub": (2, 1),
    "gelu": (1, 2), "relu": (1, 2), "transpose": (1, 1), "cat": (2, 1), "exp": (1, 1),
    "softmax": (1, 1), "avg_pool1d": (1, 1),
}  # fmt: skip
"""Operands and frequency of the ops of an irregular program."""

SHAPES = ((64, 64), (512, 64), (8, 64), (64, 256))

LIMITED = 10_000
"""Most ops of a program that is solved within a limit, too."""

FAR = 0.15
"""How often an op reads any value before it instead of a recent one."""

MODELS = ("mlp", "unet", "bert", "gpt2", "llama", "vit", "resnet", "t5")


def irregular(count: int, seed: int) -> ProgramGraph:
    """Return a program of ``count`` ops without any pattern; most read recent values.

    Args:
        count: Number of ops.
        seed: Of the random choices.
    """
    random = Random(seed)
    kinds = [kind for kind, (_, weight) in KINDS.items() for _ in range(weight)]
    values = {"x": Value("x", "float32", SHAPES[0], "input")}
    weights = [f"w{number}" for number in range(count // 10 + 1)]
    for name in weights:
        values[name] = Value(name, "float32", random.choice(SHAPES), "parameter")
    names, ops = ["x"], list[Op]()
    for number in range(count):
        kind = random.choice(kinds)
        operands: list[str] = []
        for index in range(KINDS[kind][0]):
            recent = int(random.expovariate(1 / 6)) % len(names)
            far = random.random() < FAR
            near = random.choice(names) if far else names[-1 - recent]
            weight = kind == "linear" and index == 1
            operands.append(random.choice(weights) if weight else near)
        name = f"v{number}"
        values[name] = Value(name, "float32", random.choice(SHAPES))
        names.append(name)
        promotes = kind in ("add", "mul", "sub", "gelu")
        op = Op(
            f"op{number}",
            kind,
            f"test.{kind}",
            tuple(operands),
            (name,),
            operand_rule="promote" if promotes else "equal",
            contracted=64 if kind in ("matmul", "linear") else None,
        )
        ops.append(op)
    return ProgramGraph(values, tuple(ops), tuple(names[-2:]))


def traps() -> dict[str, Any]:
    """Return for each trap what every placement gives, and how many are right."""
    rows: dict[str, Any] = {}
    right = Counter[str]()
    for trap in TRAPS:
        row: dict[str, Any] = {}
        for placement in PLACEMENTS:
            plan = trap.plan(placement)
            right[placement] += runtime_casts(plan) == trap.casts
            row[placement] = {
                "casts": plan.cost.casts,
                "cast elements": plan.cost.cast_elements,
                "total bytes": plan.cost.total_bytes,
                "lower bound": plan.cost.lower_bound,
            }
        rows[trap.name] = row
    best = {
        placement: f"{right[placement]} of {len(TRAPS)}" for placement in PLACEMENTS
    }
    return {"as known by hand": best, "rows": rows}


def random_programs(count: int) -> dict[str, Any]:
    """Return how often the solver, the plan and trying all assignments agreed."""
    found = Counter[str]()
    start = time.perf_counter()
    for seed in range(count):
        case = random_case(seed)
        best, optimum = brute_force(case), optimum_of(case)
        if best is None or optimum is None:
            found["too many sides to try, or none within the limits"] += 1
            continue
        assignments, solution = optimum
        real = price(case, assignments).total_bytes
        found["programs"] += 1
        found["with limits on errors"] += bool(case.objective.limits)
        found["agree"] += real == best == solution.cost == solution.bound
        found["bound below the cost"] += solution.bound < solution.cost
        found["more than the relaxation"] += solution.nodes > 0
        found["both sides used"] += len(set(assignments.values())) > 1
        free = free_of(case)
        found["sides tried"] += 2 ** len(free.assignable)
    return {**found, "seconds": round(time.perf_counter() - start, 1)}


def _timed(run: Callable[[], Any]) -> tuple[float, float, Any]:
    wall, processor = time.perf_counter(), time.process_time()
    result = run()
    return time.perf_counter() - wall, time.process_time() - processor, result


def solver(counts: tuple[int, ...], seeds: int = 3) -> list[dict[str, Any]]:
    """Return seconds to build and solve irregular programs, also within a limit.

    The limit allows half of the errors of the cheapest placement, which are random, by
    five orders of magnitude.
    """
    rows: list[dict[str, Any]] = []
    for count in counts:
        for seed in range(seeds):
            row: dict[str, Any] = {"ops": count, "seed": seed}
            build = _timed(partial(_irregular_program, count, seed))
            program = build[2]
            free = _timed(partial(solve, program))
            row |= {"choices": len(program.costs), "build": round(build[1], 3)}
            row["without a limit"] = _solved(free)
            if count <= LIMITED:
                random = Random(seed)
                every = {key for key, _ in program.errors}
                errors = {
                    key: 10 ** random.uniform(-10, -5) for key in sorted(every, key=str)
                }
                error = program.error(free[2].full, Limit(errors, 1.0))
                limits = [Limit(errors, error / 2)]
                row["within a limit"] = _solved(
                    _timed(partial(solve, program, limits, gap=GAP))
                )
            rows.append(row)
            print(row, flush=True)
    return rows


def _irregular_program(count: int, seed: int) -> IntegerProgram:
    policy, graph = load_policy("bf16"), irregular(count, seed)
    classes, outputs = classify(graph, Matcher(policy)), output_dtypes(graph, policy)
    at = situate(graph, policy, classes, ())
    free = find_freedom(at, keep_parameter_dtype=False)
    return build_problem(at, free, outputs, EAGER, keep_parameter_dtype=False).program


def _solved(timed: tuple[float, float, Solution]) -> dict[str, float]:
    wall, processor, solution = timed
    return {
        "wall seconds": round(wall, 3),
        "processor seconds": round(processor, 3),
        "nodes": solution.nodes,
        "gap": (solution.cost - solution.bound) / solution.cost,
    }


def _error(found: object, wanted: object) -> float:
    """Return the relative L2 error of all float outputs together, in float32."""
    import torch  # noqa: PLC0415
    from torch.utils import _pytree as pytree  # noqa: PLC0415, TID251

    def flat(output: object) -> torch.Tensor:
        leaves = [x for x in pytree.tree_leaves(output) if isinstance(x, torch.Tensor)]
        return torch.cat(
            [x.flatten().double() for x in leaves if x.is_floating_point()]
        )

    one, other = flat(found), flat(wanted)
    return float((one - other).norm() / other.norm())


def models() -> dict[str, Any]:
    """Return what each placement costs on models of the zoo, and its error."""
    import torch  # noqa: PLC0415  # only this part needs it

    import amprewrite  # noqa: PLC0415
    from benchmarks import zoo  # noqa: PLC0415

    rows: dict[str, Any] = {"torch": torch.__version__}
    for name in MODELS:
        model, args, kwargs = zoo.build(name, zoo.BASE, 4, 64)
        with torch.no_grad():
            reference = model(*args, **kwargs)
        row: dict[str, Any] = {}
        for placement in PLACEMENTS:
            given = {"args": args, "kwargs": kwargs, "placement": placement}
            converted = amprewrite.convert(model, **given)
            cost = converted.plan.cost
            with torch.no_grad():
                error = _error(converted(*args, **kwargs), reference)
            row[placement] = {
                "casts": cost.casts,
                "cast bytes": cost.cast_bytes,
                "total bytes": cost.total_bytes,
                "lower bound": cost.lower_bound,
                "relative error": float(f"{error:.2e}"),
            }
        rows[name] = row
        print(name, row, flush=True)
    return rows


def main() -> None:
    """Measure and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=10_000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found = {
        "what": "bytes by the prices of eager execution; see docs/placement.md",
        "machine": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "traps": traps(),
        "solver": solver((1_000, 10_000, 100_000)),
        "models": models(),
        "random programs": random_programs(options.programs),
    }
    print(json.dumps(found["traps"]["as known by hand"]), found["random programs"])
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
