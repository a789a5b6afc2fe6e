"""What the terms of a cut say a placement costs is what its plan costs."""

from dataclasses import replace

import numpy as np
import pytest

from amprewrite.passes.cost.cost import Objective
from amprewrite.passes.cost.cost_model import COMPILED, EAGER, CostModel
from amprewrite.passes.cost.timings import Point, Timings
from amprewrite.passes.mincut.max_flow import minimum_cut, price
from amprewrite.plan.hardware.kernels import Kernels
from amprewrite.policy import load_policy
from tests.placement_problem import graph_of, problem_of
from tests.properties.placements import Case, all_sides, free_of
from tests.properties.placements import price as price_of_plan

PROGRAMS = {
    "a block": """
        %x: f32[64,64] input
        %w: f32[64,64] parameter
        linear = linear(%x, %w) -> %h: f32[64,64]
          | contracted=64
        relu = relu(%h) -> %r: f32[64,64]
        exp = exp(%r) -> %e: f32[64,64]
        add = add(%e, %h) -> %y: f32[64,64]
          | operand_rule="promote"
        return %y
    """,
    "between library calls": """
        %x: f32[64,64] input
        %w: f32[64,64] parameter
        first = matmul(%x, %w) -> %h: f32[64,64]
          | contracted=64 accumulates=true
        second = matmul(%h, %w) -> %g: f32[64,64]
          | contracted=64 accumulates=true
        relu = relu(%g) -> %r: f32[64,64]
        third = matmul(%r, %r) -> %k: f32[64,64]
          | contracted=64
        mul = mul(%r, %k) -> %y: f32[64,64]
        return %y, %h
    """,
    "a write in place": """
        %x: f32[64,64] input
        %w: f32[64,64] parameter
        linear = linear(%x, %w) -> %h: f32[64,64]
        relu = relu(%h) -> %r: f32[64,64] alias %h
          | mutates=[0]
        exp = exp(%h) -> %y: f32[64,64]
        return %y
    """,
    "a write in place beside a result that nothing reads": """
        %x: f32[64,64] input
        %w: f32[64,64] parameter
        one = linear(%x, %w) -> %a: f32[64,64]; %b: f32[64,64] alias %a
          | contracted=64
        two = exp(%a) -> %y: f32[64,64] alias %a
          | mutates=[0]
        return %y
    """,
    "a tied table": """
        %t: f32[100,64] parameter
        %i: i64[16] input
        rows = embedding(%t, %i) -> %e: f32[16,64]
        turn = transpose(%t) -> %u: f32[64,100] alias %t
        head = matmul(%e, %u) -> %y: f32[16,100]
          | contracted=64
        return %y
    """,
}


SLOW_LOW = replace(EAGER, speedup=0.5)
MEASURED = Timings(
    {"product": (Point(16, 16**3, 1.0, 3.0), Point(64, 64**3, 1.0, 0.2))},
    saved=2,
    elementwise={"exp": 3.0},
)


@pytest.mark.parametrize("text", PROGRAMS.values(), ids=PROGRAMS)
@pytest.mark.parametrize(
    "model",
    [
        EAGER,
        COMPILED,
        replace(EAGER, launch=0),
        SLOW_LOW,
        replace(EAGER, timings=MEASURED),
        replace(COMPILED, timings=MEASURED),
        replace(COMPILED, kernels=Kernels(accumulators=True)),
    ],
    ids=[
        "eager",
        "compiled",
        "no launch",
        "slow low",
        "measured",
        "measured compiled",
        "compiled with accumulators",
    ],
)
@pytest.mark.parametrize("keep_parameter_dtype", [False, True])
def test_a_placement_costs_what_its_plan_costs(
    text: str, model: CostModel, *, keep_parameter_dtype: bool
) -> None:
    """By fixing every side: the rest of the cut is then what the casts cost."""
    graph, policy = graph_of(text), load_policy("bf16")
    case = Case(
        graph,
        policy,
        training=keep_parameter_dtype,
        objective=Objective(model),
    )
    problem = problem_of(text, model, keep_parameter_dtype=keep_parameter_dtype)
    if problem.groups.mixes:
        pytest.skip("kernels that promote are not in the terms")
    for assignments in all_sides(free_of(case)):
        fixed = problem_of(text, model, keep_parameter_dtype=keep_parameter_dtype)
        for name, side in assignments.items():
            number = fixed.reads[name]
            one, other = (1, number) if side == "full" else (number, 0)
            fixed.terms.imply(one, other)
            if name in fixed.makes and side != "full":
                made = fixed.makes[name]
                one, other = (1, made) if side == "accumulator" else (made, 0)
                fixed.terms.imply(one, other)
        columns = fixed.terms.columns()
        full = minimum_cut(fixed.variables, columns)
        said = price(columns, full) + fixed.constant
        assert fixed.assignments(full) == assignments
        assert said == price_of_plan(case, assignments).total_bytes


def test_sides_are_read_off_the_variables() -> None:
    text = PROGRAMS["a block"].replace("contracted=64", "accumulates=true", 1)
    problem = problem_of(text)
    full = np.zeros(problem.variables, np.bool_)
    assert problem.assignments(full)["linear"] == "low"
    full[problem.makes["linear"]] = True
    assert problem.assignments(full)["linear"] == "accumulator"
    full[problem.reads["linear"]] = True
    assert problem.assignments(full)["linear"] == "full"


def test_what_a_moved_weight_lies_beside_is_read_as_it_is_stored() -> None:
    """Such an op casts no wider operand beside its first, whoever moves them."""
    text = """
        %v: f32[64] parameter
        %w: f32[512,64] parameter
        cat = cat(%w, %v) -> %c: f32[64,64]
          | region="loop" operand_rule="lead"
        exp = gelu(%w) -> %e: f32[512,64]
        return %e
    """
    assert not [key for key in problem_of(text).groups.by_key if key[0] == "v"]
