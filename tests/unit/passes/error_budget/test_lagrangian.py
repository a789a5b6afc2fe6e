"""What a tolerance is, and the search for plans by predicted errors."""

from dataclasses import replace
from math import inf, nan

import pytest

from amprewrite.errors import ToleranceError, UnsupportedError
from amprewrite.passes.cost.cost import Objective
from amprewrite.passes.cost.cost_model import EAGER
from amprewrite.passes.error_budget import lagrangian
from amprewrite.passes.error_budget.lagrangian import (
    Search,
    check_tolerance,
    placement_for,
)
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


@pytest.mark.parametrize("number", [0, -1e-3, inf, nan, True, "auto", None, [1e-3]])
def test_what_bounds_nothing_is_refused(number: object) -> None:
    with pytest.raises(ToleranceError, match="want a relative error above 0"):
        check_tolerance(number, "optimal")
    with pytest.raises(ToleranceError, match=r"tolerance\['y'\] is"):
        check_tolerance({"y": number}, "optimal")


def test_a_table_without_outputs_is_refused() -> None:
    with pytest.raises(ToleranceError, match="bounds no output"):
        check_tolerance({}, "optimal")


def test_the_default_placement_takes_a_tolerance_where_there_is_one() -> None:
    assert placement_for(None, None) == "promote"
    assert placement_for(None, 1e-3) == "optimal"
    assert placement_for("promote", 1e-3) == "promote"  # which is then refused


@pytest.mark.parametrize("bound", [1e-3, 1, "autocast", {"y": 1e-3}])
def test_bounds_are_taken_by_one_placement(bound: object) -> None:
    check_tolerance(bound, "optimal")
    with pytest.raises(UnsupportedError, match="placement 'paint' takes no tolerance"):
        check_tolerance(bound, "paint")
