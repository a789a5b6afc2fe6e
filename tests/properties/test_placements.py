"""Placement by sides: the optimum is the cheapest of all, and every plan is sound."""

from dataclasses import replace
from math import inf
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from amprewrite.ir import ProgramGraph
from amprewrite.passes import PLACEMENTS, Setting, make_plan
from amprewrite.passes.analysis.classify import classify
from amprewrite.passes.analysis.context import Assignment
from amprewrite.passes.cost.cost import Objective
from amprewrite.passes.cost.cost_model import COMPILED, EAGER, Point, Timings
from amprewrite.passes.pipeline import output_dtypes, situate
from amprewrite.passes.placement.integer_program import Solution, solve
from amprewrite.passes.placement.optimal import Problem, build_problem
from amprewrite.plan import OUTPUT, Cast, Plan
from amprewrite.plan.hardware import Kernels
from amprewrite.plan.sensitivity import Key, Limit
from amprewrite.plan.uses import output_sources
from amprewrite.policy import Matcher, Policy, load_policy
from tests.properties.graphs import (
    follow,
    graphs,
    on_the_spot,
    policies,
    read_in_full,
)
from tests.properties.placements import (
    Case,
    brute_force,
    free_of,
    price,
    random_graph,
)

placements = st.sampled_from(PLACEMENTS)
targets = st.sampled_from((EAGER, COMPILED))


def random_timings(random: Random) -> Timings:
    """Products that are slower low in some shapes and faster in others."""
    shapes = [(1, 64), (8, 64), (8, 512), (64, 64), (64, 512)]
    points = [
        Point(thin, thin * side**2, *(random.uniform(0.01, 2) for _ in range(2)))
        for thin, side in shapes
    ]
    names = random.sample(("add", "relu", "mean", "gelu"), random.choice((0, 3)))
    dearer = {name: random.uniform(-1, 3) for name in names}
    return Timings({"product": tuple(points)}, saved=2, elementwise=dearer)


def random_case(seed: int, most_ops: int = 7) -> Case:
    random = Random(seed)
    graph = random_graph(random, most_ops)
    model = replace(
        random.choice((EAGER, EAGER, COMPILED)),
        launch=random.choice((0, 1000, EAGER.launch)),
        mac_bytes=random.choice((0.02, 0.2, 2.0)),
        speedup=random.choice((8.0, 8.0, 1.0, 0.5, 0.1)),
        timings=random_timings(random) if random.random() < 0.3 else None,
    )
    keys: list[Key] = [*graph.values]
    keys += [(name, op.name) for op in graph.ops for name in op.operands]
    chosen = random.sample(keys, min(len(keys), random.choice((0, 0, 3, len(keys)))))
    errors = {key: 10 ** random.uniform(-12, 0) for key in chosen}
    bound = sum(errors.values()) * random.choice((0.0, 0.01, 0.1, 0.3, 0.6))
    if chosen and random.random() < 0.2:
        errors[chosen[0]] = inf
    limits = (Limit(errors, bound),) if errors else ()
    policy = load_policy(random.choice(("bf16", "bf16-accumulate")))
    model = replace(model, kernels=Kernels(accumulators=seed % 2 == 0))
    output = random.choice(("as-traced", "low"))
    training = random.random() < 0.4
    return Case(
        graph,
        replace(policy, output=output),
        training,
        Objective(model, limits),
        differentiable=random.random() < 0.5,
    )


def problem_for(case: Case) -> Problem:
    situation, outputs = case.situation()
    return build_problem(
        situation,
        free_of(case),
        outputs,
        case.objective.model,
        keep_parameter_dtype=case.training,
    )


def optimum_of(case: Case) -> tuple[dict[str, Assignment], Solution] | None:
    problem = problem_for(case)
    solution = solve(problem.program, case.objective.limits)
    return solution and (problem.assignments(solution.full), solution)


def assert_optimal(case: Case) -> None:
    """The solver, the plan made of its sides and trying them all agree on the cost."""
    best, optimum = brute_force(case), optimum_of(case)
    if optimum is None or best is None:
        assert best is None
        return
    assignments, solution = optimum
    assert price(case, assignments).total_bytes == solution.cost
    assert solution.cost == solution.bound == best


@settings(max_examples=150)
@example(seed=72)  # a move behind an op that joins weights
@example(seed=14)  # a move of several weights of which one is full
@given(seed=st.integers(0, 2**32))
def test_the_optimum_is_the_cheapest_of_all_sides(seed: int) -> None:
    assert_optimal(random_case(seed))


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_ten_thousand_random_programs_are_placed_at_the_least_cost(block: int) -> None:
    for seed in range(1000):
        assert_optimal(random_case(1000 * block + seed))


def plan_for(
    graph: ProgramGraph, policy: Policy, placement: str, *, training: bool, model=EAGER
) -> Plan:
    setting = Setting(
        placement, keep_parameter_dtype=training, objective=Objective(model)
    )
    return make_plan(graph, Matcher(policy), setting)


@given(graph=graphs(), policy=policies(), training=st.booleans(), model=targets)
def test_the_certificate_of_any_program_holds_for_every_placement(
    graph: ProgramGraph, policy: Policy, *, training: bool, model
) -> None:
    def cost(placement: str):
        plan = plan_for(graph, policy, placement, training=training, model=model)
        return plan.cost

    best = cost("optimal")
    assert best.lower_bound is not None
    assert best.lower_bound == best.total_bytes
    assert best.lower_bound <= cost("paint").total_bytes


@given(graph=graphs(), policy=policies(), placement=placements, training=st.booleans())
def test_every_operand_and_output_arrives_in_its_dtype(
    graph: ProgramGraph, policy: Policy, placement: str, *, training: bool
) -> None:
    plan = plan_for(graph, policy, placement, training=training)
    followed = follow(graph, plan)
    for op in graph.ops:
        wanted = plan.by_op[op.name].operands
        for index, name in enumerate(op.operands):
            assert followed.reaching(op.name, index, name) == wanted[index], op.name
    # Outputs that share one storage are cast together, from the value that owns it.
    outputs = zip(output_sources(graph), output_dtypes(graph, policy), strict=True)
    for index, (name, dtype) in enumerate(outputs):
        have = followed.stored[name]
        for cast in plan.casts:
            if cast.value == name and (OUTPUT, index) in cast.uses:
                assert cast.from_dtype == have
                have = cast.to_dtype
        assert have == dtype


@given(graph=graphs(), policy=policies(), placement=placements, training=st.booleans())
def test_readers_of_a_returned_value_read_what_is_returned(
    graph: ProgramGraph, policy: Policy, placement: str, *, training: bool
) -> None:
    graph = replace(graph, taped=True)
    plan = plan_for(graph, policy, placement, training=training)
    weights = situate(graph, policy, classify(graph, Matcher(policy)), ()).weights

    def chain(consumer: str, index: int, name: str) -> list[Cast]:
        use = (consumer, index)
        return [c for c in plan.casts if c.value == name and use in c.uses]

    for index, name in enumerate(graph.outputs):
        full = graph.is_dtype(name, policy.full) and plan.outputs[index] == policy.full
        is_read = bool(graph.users[name]) and name in graph.producer
        if not full or not is_read or name in weights:
            continue
        if output_sources(graph)[index] != name:  # a view, which is full itself
            assert follow(graph, plan).made[name] == policy.full
            continue
        returned = chain(OUTPUT, index, name)
        for op, number in graph.users[name]:
            assert chain(op.name, number, name)[: len(returned)] == returned


@given(graph=graphs(), policy=policies(), placement=placements, training=st.booleans())
def test_what_is_written_in_place_has_one_dtype_for_all_views(
    graph: ProgramGraph, policy: Policy, placement: str, *, training: bool
) -> None:
    plan = plan_for(graph, policy, placement, training=training)
    stored = follow(graph, plan).stored
    dtypes: dict[str, set[str]] = {}
    for name in graph.values:
        storage = graph.storage(name)
        if storage in graph.written and graph.is_dtype(name, policy.full):
            dtypes.setdefault(storage, set()).add(stored[name])
    assert all(len(found) == 1 for found in dtypes.values())


@given(graph=graphs(), policy=policies(), placement=placements)
def test_only_weights_that_are_read_in_full_too_are_cast_at_run_time(
    graph: ProgramGraph, policy: Policy, placement: str
) -> None:
    plan = plan_for(graph, policy, placement, training=False)
    for cast in plan.runtime_casts:
        if cast.is_weight and not cast.region and not on_the_spot(cast):
            assert read_in_full(graph, plan, cast.value, policy.full)
