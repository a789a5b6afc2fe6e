"""Random programs for placement, and their cheapest assignment by brute force."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import fsum
from random import Random

from amprewrite.ir import REGION_BOUNDARIES, Op, ProgramGraph, Value, check_graph
from amprewrite.passes.analysis.classify import classify
from amprewrite.passes.analysis.context import Assignment, Placement, Situation
from amprewrite.passes.cost.cost import Objective, counted_errors, plan_cost
from amprewrite.passes.pipeline import output_dtypes, situate
from amprewrite.passes.placement.casts import build_casts, loop_entries
from amprewrite.passes.placement.constraints import (
    Chosen,
    Freedom,
    find_freedom,
    place_assignment,
)
from amprewrite.plan import Cost
from amprewrite.plan.sensitivity import Key, Limit
from amprewrite.plan.uses import dtypes_read
from amprewrite.policy import Matcher, Policy

MOST = 3**9
"""Assignments that are tried for one program at most."""

REASONS: dict[Assignment, str] = {"low": "", "full": "", "accumulator": ""}

KINDS = (
    ("matmul", 2), ("matmul", 2), ("linear", 2), ("add", 2), ("mul", 2), ("sub", 2),
    ("gelu", 1), ("relu", 1), ("transpose", 1), ("cat", 2), ("exp", 1), ("softmax", 1),
    ("avg_pool1d", 1), ("argmax", 1), ("select", 1), ("sin", 1),
    ("mean", 1), ("square", 1), ("cast", 1), ("cast", 1),
    ("enter", 1), ("leave", 2), ("leave", 1), ("carry", 1),
)  # fmt: skip
"""Ops of every class, and how many operands they read."""

MIXED = (
    ("matmul", 2), ("matmul", 2), ("add", 2), ("mul", 2), ("sub", 2), ("sub", 3),
    ("exp", 1), ("exp", 1), ("relu", 1), ("mean", 1),
)  # fmt: skip
"""Ops among which kernels that promote often decide: low operands, full readers."""

LOOPING = (
    ("enter", 1), ("enter", 1), ("enter", 1), ("matmul", 2), ("matmul", 2), ("add", 2),
    ("exp", 1), ("transpose", 1), ("carry", 1), ("leave", 1),
)  # fmt: skip
"""Ops of a program most of which stands in a loop."""

PROMOTING = ("add", "mul", "sub", "gelu")
VIEWS = ("transpose", "select")
SHAPES: tuple[tuple[int, ...], ...] = (
    (64, 64),
    (64, 64),
    (8, 64),
    (64,),
    (512, 64),
    (),
)


@dataclass(frozen=True)
class Case:
    """A program and all that its price depends on."""

    graph: ProgramGraph
    policy: Policy
    training: bool
    objective: Objective
    differentiable: bool = True

    def situation(self) -> tuple[Situation, tuple[str, ...]]:
        classes = classify(self.graph, Matcher(self.policy))
        outputs = output_dtypes(self.graph, self.policy)
        found = situate(self.graph, self.policy, classes, ())
        if not self.differentiable:
            entries = loop_entries(self.graph, self.policy.full)
            found = replace(found, entries=entries)
        return found, outputs


def random_graph(random: Random, most_ops: int = 8) -> ProgramGraph:
    """Return a program with fan-out, weights, ties, promoting kernels and writes."""
    values: dict[str, Value] = {}
    kinds, shapes = random.choice(
        ((KINDS, SHAPES), (KINDS, SHAPES), (MIXED, SHAPES[:2]), (LOOPING, SHAPES[:3]))
    )
    for number in range(random.randint(1, 3)):
        kind = random.choice(("input", "parameter", "buffer"))
        values[f"i{number}"] = Value(
            f"i{number}", "float32", random.choice(shapes), kind
        )
    ops = [
        _random_op(random, number, values, random.choice(kinds), shapes)
        for number in range(random.randint(1, most_ops))
    ]
    turns = random.choice((0, 1, 2, 5, 100))
    looping = kinds is LOOPING
    ops = [_in_loop(random, op, turns, looping=looping) for op in ops]
    outputs = random.sample(sorted(values), random.randint(1, 2))
    taped = kinds is not LOOPING and random.random() < 0.5
    graph = ProgramGraph(values, tuple(ops), tuple(outputs), taped=taped)
    return check_graph(graph)


def _in_loop(random: Random, op: Op, turns: int, *, looping: bool) -> Op:
    """Say how often an op runs; what passes in or out, at one turn or at all."""
    region = "loop" if looping and random.random() < 0.7 else op.region
    trips = turns if region else 1
    if op.canonical in REGION_BOUNDARIES:
        trips = random.choice((1, 1, turns))
    return replace(op, region=region, trips=trips)


def _random_op(
    random: Random,
    number: int,
    values: dict[str, Value],
    kind: tuple[str, int],
    shapes: Sequence[tuple[int, ...]],
) -> Op:
    canonical, arity = kind
    names = [name for name, value in values.items() if value.dtype == "float32"]
    operands = tuple(random.choice(names[-5:] if random.random() < 0.7 else names)
                     for _ in range(arity))  # fmt: skip
    means = [name for name in names if name.startswith("mean_of_")]
    if canonical == "sub" and means and random.random() < 0.5:
        mean = random.choice(means)
        operands = (mean.removeprefix("mean_of_").rpartition("_")[0], mean)
    first = values[operands[0]]
    shape = random.choice((first.shape, random.choice(shapes)))
    alias, mutates = "", ()
    if canonical in VIEWS and random.random() < 0.5:
        alias = first.alias
    elif canonical in ("relu", "add", "mul", "exp") and random.random() < 0.15:
        alias, mutates, shape = first.alias, (0,), first.shape
    count = 2 if canonical == "cat" and random.random() < 0.3 else 1
    results = tuple(f"v{number}.{index}" for index in range(count))
    if canonical == "mean":
        results = (f"mean_of_{operands[0]}_{number}",)
    is_cast = canonical == "cast"
    if is_cast:
        shape = first.shape
        alias = random.choice(("", first.alias))
    dtype = "int64" if canonical == "argmax" else "float32"
    for name in results:
        values[name] = Value(name, dtype, shape, "result", alias)
    operand_rule = (
        "promote" if canonical in PROMOTING and random.random() < 0.8 else "equal"
    )
    return Op(
        f"op{number}",
        canonical,
        f"test.{canonical}",
        operands,
        results,
        mutates=mutates,
        operand_rule="any"
        if is_cast
        else random.choice((operand_rule, operand_rule, operand_rule, "lead")),
        dtype_argument="float32" if is_cast else "",
        chosen=random.choice(("", "pinned", "follows")) if is_cast else "",
        region=random.choice(("", "", "", "", "loop")),
        contracted=random.choice((1, 8, 64, 512)) if canonical == "matmul" else None,
        accumulates=canonical == "matmul" and random.random() < 0.3,
        has_dtype_argument=canonical in ("softmax", "mean") and random.random() < 0.5,
    )


def free_of(case: Case) -> Freedom:
    """Return what there is to decide in ``case``."""
    return find_freedom(case.situation()[0], keep_parameter_dtype=case.training)


def price(case: Case, assignments: dict[str, Assignment]) -> Cost:
    """Return the cost of the plan that ``assignments`` give, from its actual casts."""
    situation, outputs = case.situation()
    freedom = find_freedom(situation, keep_parameter_dtype=case.training)
    chosen = Chosen(freedom, assignments, REASONS)
    placement, low = place_assignment(
        situation, chosen, keep_parameter_dtype=case.training
    )
    situation = replace(situation, low_weights=low)
    casts = build_casts(situation, placement, outputs, fold=not case.training)
    return plan_cost(situation, placement, casts, case.objective)


def all_sides(freedom: Freedom) -> Iterator[dict[str, Assignment]]:
    """Yield every assignment of assignments that keeps the ties."""
    for assignments in product(*(freedom.options(name) for name in freedom.assignable)):
        found = dict(zip(freedom.assignable, assignments, strict=True))
        if freedom.allows(found):
            yield found


def roundings(situation: Situation, placement: Placement) -> Iterator[Key]:
    """Yield the roundings of a placement: values stored low, and read low if not."""
    low, full = situation.policy.low, situation.policy.full
    made = [n for n in placement.stored if placement.rounded_to(situation, n) == low]
    rounded = {
        name
        for name in made
        if name not in situation.weights and situation.graph.is_dtype(name, full)
    }
    yield from rounded
    for op in situation.graph.ops:
        read = dtypes_read(op, placement.ops[op.name].operands)
        for name in counted_errors(situation, op)[1]:
            is_full = situation.graph.is_dtype(name, full)
            if is_full and read[name] == low and name not in rounded:
                yield name, op.name


def keeps(situation: Situation, placement: Placement, limit: Limit) -> bool:
    errors = (limit.errors.get(key, 0.0) for key in roundings(situation, placement))
    return fsum(errors) <= limit.bound


def brute_force(case: Case) -> int | None:
    """Return the least cost of all assignments within the limits.

    None if there are too many, or if none is within the limits.
    """
    situation, outputs = case.situation()
    freedom = find_freedom(situation, keep_parameter_dtype=case.training)
    count = 1
    for name in freedom.assignable:
        count *= len(freedom.options(name))
    if count > MOST:
        return None
    costs: list[int] = []
    for assignments in all_sides(freedom):
        chosen = Chosen(freedom, assignments, REASONS)
        placement, low = place_assignment(
            situation, chosen, keep_parameter_dtype=case.training
        )
        placed = replace(situation, low_weights=low)
        casts = build_casts(placed, placement, outputs, fold=not case.training)
        if all(keeps(placed, placement, limit) for limit in case.objective.limits):
            cost = plan_cost(placed, placement, casts, case.objective)
            costs.append(cost.total_bytes)
    return min(costs, default=None)
