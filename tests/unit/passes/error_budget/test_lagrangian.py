"""The search for plans by predicted errors."""

from dataclasses import replace
from math import inf

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
