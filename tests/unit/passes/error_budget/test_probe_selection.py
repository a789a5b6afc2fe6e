"""What may be rounded, and what costs more than any plan."""

import random
from dataclasses import replace

import pytest

from amprewrite.passes import Setting, make_plan
from amprewrite.passes.cost.cost import Objective
from amprewrite.passes.cost.cost_model import EAGER
from amprewrite.passes.error_budget.budget import find_probes
from amprewrite.passes.placement.integer_program import solve
from amprewrite.plan.sensitivity import Limit, Probes, Sensitivity
from amprewrite.policy import Matcher, load_policy
from tests.placement_problem import FREE_CASTS, graph_of
from tests.properties.test_placements import problem_for, random_case


def probes(text: str, policy: str = "bf16") -> Probes:
    matcher = Matcher(load_policy(policy))
    return find_probes(graph_of(text), matcher, keep_parameter_dtype=False)


TEXT = """
    %x: f32[64,64] input
    %w: f32[64,64] parameter
    t = transpose(%w) -> %wt: f32[64,64] alias %w
    linear = linear(%x, %wt) -> %h: f32[64,64]
      | contracted=64
    exp = exp(%h) -> %e: f32[64,64]
    view = view(%e) -> %v: f32[4096] alias %e
    gelu = gelu(%v) -> %y: f32[4096]
    return %y
"""


def test_results_are_stored_and_operands_read_where_an_op_may_be_low() -> None:
    found = probes(TEXT)
    assert found.stored == {"h", "y"}
    assert found.read == {
        *(("x", "linear"), ("wt", "linear")),
        *(("e", "view"), ("v", "gelu")),
    }
    assert found.weights == {"w", "wt"}
    assert (found.low, found.full) == ("bfloat16", "float32")


def test_what_is_written_in_place_has_no_probe() -> None:
    found = probes("""
        %x: f32[64,64] input
        linear = linear(%x, %x) -> %h: f32[64,64]
          | contracted=64
        relu = relu_(%h) -> %r: f32[64,64] alias %h
          | mutates=[0]
        gelu = gelu(%r) -> %y: f32[64,64]
        return %y
    """)
    assert found.stored == {"y"}
    assert found.read == {("x", "linear")}


def test_a_cast_that_follows_rounds() -> None:
    text = """
        %x: f32[8] input
        cast = cast(%x) -> %y: f32[8]
          | dtype_argument="float32" chosen="follows"
        return %y
    """
    assert probes(text).stored == {"y"}
    assert probes(text.replace("follows", "pinned")).stored == set()


def test_masks_keep_their_finite_numbers() -> None:
    found = probes(
        """
        %x: f32[8] input
        add = add(%x) -> %m: f32[8]
          | literals=[-3.4e38]
        return %m
        """,
        "fp16",
    )
    assert found.saturated == {"m"}


@pytest.mark.parametrize("seed", range(40))
def test_a_prediction_counts_what_placement_counts(seed: int) -> None:
    case = random_case(seed)
    matcher = Matcher(case.policy)
    probed = find_probes(case.graph, matcher, keep_parameter_dtype=case.training)
    draw = random.Random(seed)
    stored = {key: float(draw.randrange(1, 5000)) for key in sorted(probed.stored)}
    read = {key: float(draw.randrange(1, 5000)) for key in sorted(probed.read)}
    sensitivity = Sensitivity(stored, read, 1, weights=probed.weights)
    bound = sum(sensitivity.all.values()) * draw.choice((0.5, 1.0))
    limit = Limit(sensitivity.all, bound)
    objective = Objective(FREE_CASTS, (limit,))
    setting = Setting(
        "optimal",
        keep_parameter_dtype=case.training,
        objective=objective,
        differentiable=case.differentiable,
    )
    plan = make_plan(case.graph, matcher, setting)
    problem = problem_for(replace(case, objective=objective))
    solution = solve(problem.program, (limit,))
    assert solution is not None
    counted = problem.program.error(solution.full, limit)
    assert sum(sensitivity.made(plan, case.graph).values()) == counted <= bound


def test_values_that_are_called_as_their_ops_count_once() -> None:
    """As in every torch.fx graph."""
    graph = graph_of("""
        %x: f32[512,512] input
        %w: f32[512,512] parameter
        linear = linear(%x, %w) -> %linear: f32[512,512]
          | contracted=512
        gelu = gelu(%linear) -> %gelu: f32[512,512]
        return %gelu
    """)

    def lowered(bound: float) -> int:
        limit = Limit({"linear": 100.0, "gelu": 1000.0}, bound)
        setting = Setting("optimal", objective=Objective(EAGER, (limit,)))
        plan = make_plan(graph, Matcher(load_policy("bf16")), setting)
        return len(plan.lowered)

    assert (lowered(1100.0), lowered(1099.0)) == (2, 1)
