"""The search for plans by predicted errors."""

from dataclasses import replace
from math import inf

from amprewrite.passes.cost.cost import Objective
from amprewrite.passes.cost.cost_model import EAGER
from amprewrite.passes.error_budget import lagrangian
from amprewrite.passes.error_budget.lagrangian import Search
from tests.tolerance_goal import goal, plan_for, sensitivity


def test_the_bound_is_that_of_the_bytes_too() -> None:
    errors = {"h1": 1000.4, "h2": 5.0, ("h0", "op1"): 7.0}
    dear, free = plan_for(Objective(EAGER, errors)), plan_for(Objective())
    assert dear.cost.total_bytes == free.cost.total_bytes + 1012
    made = dict.fromkeys(errors, 1e-6)
    assert lagrangian._without_errors(dear, made, errors).cost == free.cost


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
