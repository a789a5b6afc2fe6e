"""The fastest of the plans within a tolerance, by a clock that the test sets."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from amprewrite.errors import ToleranceError
from amprewrite.passes.cost.cost import Objective
from amprewrite.passes.error_budget import fastest
from amprewrite.passes.error_budget.fastest import Fastest
from amprewrite.plan import Plan
from amprewrite.plan.sensitivity import Measurements
from amprewrite.policy import Matcher, load_policy
from tests.tolerance_goal import COUNT, GRAPH, sensitivity

FOUND = sensitivity(2.0)


@pytest.fixture(autouse=True)
def an_empty_folder(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def budget(tolerance: float = 1.0, *conditions: str) -> Fastest:
    matcher = partial(Matcher, load_policy("fp16"), ())
    return Fastest(tolerance, matcher, Objective(), conditions=conditions)


def measurements(
    seconds: Callable[[Plan], float | None] | None, target: float = 1.0
) -> tuple[Measurements, dict[str, Plan]]:
    """What a program measured, and the plans that are timed, filled by the clock."""
    timed: dict[str, Plan] = {}

    def clock(plans: Mapping[str, Plan]) -> dict[str, float] | None:
        timed.update(plans)
        found = {name: seconds(plan) for name, plan in plans.items()} if seconds else {}
        known = {name: time for name, time in found.items() if time is not None}
        return known if len(known) == len(plans) else None

    known = Measurements(
        GRAPH,
        training=False,
        captured="by hand",
        sensitivity=FOUND,
        target=target,
        measure=lambda plan: FOUND.predicted(plan, GRAPH),
        clock=clock if seconds else None,
    )
    return known, timed


def slower_low(plan: Plan) -> float:
    return 1.0 + len(plan.lowered)


def slower_full(plan: Plan) -> float:
    return 1.0 + COUNT - len(plan.lowered)


def test_full_precision_is_taken_where_low_kernels_are_slower() -> None:
    known, timed = measurements(slower_low)
    plan = budget().plan(known)
    assert len(timed) >= 3
    assert not plan.lowered
    assert plan.timed[0].name == "full"
    assert plan.placement == "fastest"
    assert any("full precision was the fastest of the" in w for w in plan.warnings)


def test_the_lowest_plan_is_taken_where_low_kernels_are_faster() -> None:
    known, timed = measurements(slower_full)
    plan = budget().plan(known)
    assert len(plan.lowered) == COUNT
    times = [one.seconds for one in plan.timed]
    assert times == sorted(times)
    assert [one.name for one in plan.timed] == sorted(
        timed, key=lambda name: slower_full(timed[name])
    )
    assert "full" in timed


def test_a_plan_between_is_taken_if_it_is_the_fastest() -> None:
    known, _ = measurements(lambda plan: 1.0 + abs(len(plan.lowered) - 3))
    plan = budget().plan(known)
    assert 0 < len(plan.lowered) < COUNT
    assert plan.predicted_error == FOUND.predicted(plan, GRAPH)


def test_all_candidates_are_within_the_tolerance_and_differ() -> None:
    whole = sum(FOUND.stored.values()) ** 0.5
    target = whole / 2
    known, timed = measurements(slower_full, target)
    plan = budget(target).plan(known)
    errors = [one.error for one in plan.timed]
    assert max(errors) <= target
    assert plan.tolerance == target
    assert len({len(p.lowered) for p in timed.values()}) == len(timed)
    assert all(len(p.lowered) < COUNT for p in timed.values())


def test_no_plan_within_the_tolerance_is_an_error() -> None:
    known, timed = measurements(slower_full, 1e-9)
    known = replace(known, measure=lambda _: 1.0)
    with pytest.raises(ToleranceError, match="no plan found"):
        budget(1e-9).plan(known)
    assert not timed


def test_out_of_memory_leaves_the_plan_by_prices_with_a_warning() -> None:
    known, _ = measurements(lambda _: None)
    plan = budget().plan(known)
    assert len(plan.lowered) == COUNT
    assert not plan.timed
    assert fastest.NO_MEMORY in plan.warnings
    assert budget().remembered(GRAPH, keep_parameter_dtype=False) is None


def test_without_values_the_plan_is_by_prices_with_a_warning() -> None:
    known, _ = measurements(None)
    plan = budget().plan(known)
    assert fastest.UNTIMED in plan.warnings
    assert plan.placement == "fastest"


def test_the_plan_is_remembered_for_the_program_and_the_conditions() -> None:
    known, _ = measurements(slower_low)
    plan = budget(1.0, "cpu").plan(known)
    again = budget(1.0, "cpu").remembered(GRAPH, keep_parameter_dtype=False)
    assert again == plan
    assert budget(1.0, "cuda").remembered(GRAPH, keep_parameter_dtype=False) is None
    assert budget(1.0, "cpu").remembered(GRAPH, keep_parameter_dtype=True) is None


def test_a_program_that_draws_random_numbers_is_bound_by_predictions() -> None:
    known, timed = measurements(slower_full, 1e-3)
    plan = budget(1e-3).plan(replace(known, measure=lambda _: None))
    assert timed
    assert plan.predicted_error is not None
    assert plan.predicted_error <= fastest.UNMEASURED * 1e-3
