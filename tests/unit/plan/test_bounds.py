"""What a tolerance is, and which placement takes one."""

from math import inf, nan

import pytest

from amprewrite.errors import ToleranceError, UnsupportedError
from amprewrite.plan.bounds import check_tolerance, placement_for, strategy_of


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


def test_the_fastest_takes_a_tolerance_and_is_planned_by_prices_elsewhere() -> None:
    check_tolerance(1e-3, "fastest")
    assert strategy_of("fastest") == "optimal"
    assert strategy_of("promote") == "promote"
