"""Error against bytes: plans that no other beats in both."""

from functools import partial
from itertools import pairwise

import pytest

from amprewrite.passes.cost.cost import Objective
from amprewrite.passes.error_budget.budget import Front
from amprewrite.plan.bounds import Point
from amprewrite.plan.sensitivity import Measurements, Sensitivity
from amprewrite.policy import Matcher, load_policy
from tests.tolerance_goal import COUNT, GRAPH, sensitivity


def swept(found: Sensitivity, count: int = 8, *, random: bool = False) -> Front:
    matcher = partial(Matcher, load_policy("fp16"), ())
    front = Front(1.0, matcher, Objective(), count=count)
    known = Measurements(
        GRAPH,
        training=False,
        captured="by hand",
        sensitivity=found,
        target=1.0,
        measure=lambda plan: None if random else 2 * found.predicted(plan, GRAPH),
    )
    assert front.plan(known) == front.points[0].plan
    return front


def optimal(front: Front) -> list[Point]:
    return [point for point in front.points if point.placement == "optimal"]


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_more_bytes_have_less_error(factor: float) -> None:
    points = optimal(swept(sensitivity(factor)))
    assert len(points) > 4
    for one, two in pairwise(points):
        assert one.plan.cost.total_bytes < two.plan.cost.total_bytes
        assert one.predicted > two.predicted
    assert len(points[0].plan.lowered) == COUNT
    assert len(points[-1].plan.lowered) == 0


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_each_has_a_certificate_that_holds_for_the_others(factor: float) -> None:
    points = optimal(swept(sensitivity(factor), 20))
    for point in points:
        bound = point.plan.cost.lower_bound
        assert bound is not None
        for other in points:
            if other.predicted <= point.predicted:
                assert bound <= other.plan.cost.total_bytes
    assert points[0].plan.cost.lower_bound == points[0].plan.cost.total_bytes
    exact = [p for p in points if p.plan.cost.lower_bound == p.plan.cost.total_bytes]
    assert len(exact) >= 2


def test_promote_stands_beside_them() -> None:
    front = swept(sensitivity())
    last = front.points[-1]
    assert last.placement == last.plan.placement == "promote"
    assert last.plan.cost.lower_bound is None
    assert last.predicted == last.plan.predicted_error
    assert last.predicted > 0.0


def test_every_plan_is_measured_where_it_can_be() -> None:
    for point in swept(sensitivity()).points:
        assert point.measured == 2 * point.predicted
    assert {p.measured for p in swept(sensitivity(), random=True).points} == {None}


def test_nothing_to_choose_gives_one_point() -> None:
    nothing = Sensitivity({}, {}, 4)
    assert [p.placement for p in swept(nothing).points] == ["optimal", "promote"]
