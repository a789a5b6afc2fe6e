"""The search for plans by predicted errors."""

from dataclasses import replace
from math import inf

import pytest

from amprewrite.passes.cost.cost import Objective
from amprewrite.passes.cost.cost_model import EAGER
from amprewrite.passes.error_budget.lagrangian import Price, Search
from tests.tolerance_goal import COUNT, GRAPH, goal, plan_for, sensitivity


def test_the_cost_and_its_bound_are_those_of_the_bytes_alone() -> None:
    """A price that changes no plan changes no cost."""
    search = Search(goal(8e-3, sensitivity()))
    free, dear = plan_for(Objective(EAGER)), search.plan_at(Price(1e6))
    assert len(dear.lowered) == COUNT
    assert sum(search.goal.sensitivity.made(dear, GRAPH).values()) * 1e6 > COUNT
    assert dear.cost == free.cost


def test_a_looser_prediction_is_never_dearer() -> None:
    search = Search(goal(8e-3, sensitivity(2.0)))
    prices = [search.find(8e-3 * share) for share in (0.2, 0.4, 0.6, 0.8, 1.0)]
    plans = [search.plan_at(price) for price in prices if price is not None]
    costs = [plan.cost.total_bytes for plan in plans]
    assert len(costs) == 5
    assert costs == sorted(costs, reverse=True)
    assert len(set(costs)) > 2


def test_an_infinite_error_certifies_by_its_own_bound_alone() -> None:
    search = Search(goal(8e-3, sensitivity(2.0)))
    plan = search.plan_at(search.dearest)
    endless = search.certified(replace(plan, predicted_error=inf))
    assert endless.cost.lower_bound == plan.cost.lower_bound


def test_no_price_makes_all_predictions() -> None:
    search = Search(goal(8e-3, sensitivity()))
    assert search.find(8e-3) == search.cheapest
    assert search.find(-1.0) is None
    assert search.plan_at(search.dearest).predicted_error == 0.0


@pytest.mark.parametrize("share", [0.2, 0.4, 0.6, 0.8, 0.95])
@pytest.mark.parametrize("factor", [1.5, 2.0, 4.0])
def test_crossings_find_a_plan_as_cheap_as_bisections_in_fewer_solves(
    share: float, factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = Search(goal(8e-3, sensitivity(factor)))
    found = search.find(8e-3 * share)
    monkeypatch.setattr(Search, "_crossing", lambda *_: None)
    bisected = Search(goal(8e-3, sensitivity(factor)))
    known = bisected.find(8e-3 * share)
    assert found is not None
    assert known is not None
    cost, wanted = search.plan_at(found).cost, bisected.plan_at(known).cost
    assert cost.total_bytes <= wanted.total_bytes
    bound, other = (
        one.certified(one.plan_at(price)).cost.lower_bound
        for one, price in ((search, found), (bisected, known))
    )
    assert bound is not None
    assert other is not None
    assert bound >= other
    free = found == search.cheapest
    assert free or len(search.plans) < len(bisected.plans)
