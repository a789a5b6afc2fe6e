"""Placement ``optimal``: what it chooses, and the hook for errors."""

from dataclasses import replace

import pytest

from amprewrite.passes import Setting, make_plan
from amprewrite.passes.cost.cost import Errors, Objective
from amprewrite.passes.cost.cost_model import EAGER
from amprewrite.passes.mincut.optimal import choose_optimal
from amprewrite.plan import Plan
from amprewrite.policy import Matcher, load_policy
from tests.placement_problem import graph_of, problem_of

TEXT = """
    %x: f32[512,512] input
    %w: f32[512,512] parameter
    %u: f32[512,512] parameter
    first = linear(%x, %w) -> %h: f32[512,512]
      | contracted=512
    gelu = gelu(%h) -> %g: f32[512,512]
    second = linear(%g, %u) -> %y: f32[512,512]
      | contracted=512
    return %y
"""


def plan(objective: Objective, text: str = TEXT, policy: str = "bf16") -> Plan:
    matcher = Matcher(load_policy(policy))
    return make_plan(graph_of(text), matcher, Setting("optimal", objective=objective))


def lowered(found: Plan) -> list[str]:
    return [decision.op for decision in found.lowered]


def test_contractions_and_what_lies_between_run_low() -> None:
    found = plan(Objective())
    assert lowered(found) == ["first", "gelu", "second"]
    assert found.cost.lower_bound == found.cost.total_bytes


def test_a_contraction_stays_full_where_casts_cost_more_than_they_save() -> None:
    dear = Objective(replace(EAGER, launch=10**9))
    found = plan(dear)
    assert lowered(found) == []
    assert found.warnings[0].endswith(
        "it would cost more than it saves, or is not safe"
    )


@pytest.mark.parametrize("key", ["g", "h", "y"])
def test_an_error_is_avoided_where_it_costs_more_than_precision(
    key: str,
) -> None:
    small, large = Objective(errors={key: 1000.4}), Objective(errors={key: 1e9})
    assert (
        plan(small).cost.overhead_bytes == plan(Objective()).cost.overhead_bytes + 1000
    )
    found = plan(large)
    assert len(found.lowered) < 3
    assert found.cost.lower_bound == found.cost.total_bytes
    assert found.cost.total_bytes < 1e9


def test_reading_low_is_an_error_only_of_what_is_stored_full() -> None:
    """What was stored low was rounded already."""
    reading: Errors = {("g", "second"): 1000.4}
    assert plan(Objective(errors=reading)).cost == plan(Objective()).cost
    stored: Errors = {"h": 1e9, "g": 1e9}
    assert lowered(plan(Objective(errors=stored))) == ["second"]
    both: Errors = {**stored, ("g", "second"): 1e9}
    assert lowered(plan(Objective(errors=both))) == []


def test_a_sensitive_op_that_is_accumulated_is_chosen_by_bytes() -> None:
    text = TEXT.replace("gelu = gelu(%h)", "gelu = avg_pool1d(%h)")
    assert lowered(plan(Objective(), text)) == ["first", "gelu", "second"]


def test_the_optimum_is_that_of_the_plan() -> None:
    found = choose_optimal(problem_of(TEXT, EAGER))
    cost = plan(Objective()).cost
    assert (found.cost, found.bound) == (cost.total_bytes, cost.lower_bound)
    assert found.chosen.assignments == dict.fromkeys(("first", "gelu", "second"), "low")


def test_a_policy_that_lowers_nothing_needs_no_solver() -> None:
    found = plan(Objective(), policy="off")
    assert (found.lowered, found.cost.lower_bound) == ((), None)
