"""Bounds on outputs, and the errors that are held against them."""

from math import inf

import pytest

from amprewrite.errors import ToleranceError
from amprewrite.measure.runs import Run
from amprewrite.measure.tolerance import Norms, norms_of
from tests.measured_numbers import run

RIGHT = run(a=[3.0, 0.0], b=[0.0, 4.0], zero=[0.0])


def never() -> Run:
    raise AssertionError


def test_errors_are_joined_or_the_largest_counts() -> None:
    factors = {"a": 0.5, "b": 2.0}
    found, right = run(a=[3, 4], b=[1], c=[9]), run(a=[0, 0], b=[0], c=[0])
    joined = Norms(factors, jointly=True, target=1.0).error(found, right)
    assert joined == pytest.approx((2.5**2 + 2.0**2) ** 0.5)
    assert Norms(factors, jointly=False, target=1.0).error(found, right) == 2.5
    broken = run(a=[float("nan"), 1.0], b=[1.0])
    assert Norms(factors, jointly=False, target=1.0).error(broken, right) == inf


def test_a_number_bounds_all_outputs_together() -> None:
    norms = norms_of(1e-3, RIGHT, never, "it")
    assert norms == Norms(dict.fromkeys(("a", "b", "zero"), 0.2), True, 1e-3)  # a field


def test_a_table_bounds_each_in_units_of_the_strictest() -> None:
    norms = norms_of({"a": 1e-2, "b": 1e-3}, RIGHT, never, "it")
    assert not norms.jointly
    assert norms.target == 1e-3
    assert norms.factors == pytest.approx({"a": 0.1 / 3, "b": 1 / 4})
    with pytest.raises(ToleranceError, match="there are 'a', 'b', 'zero'"):
        norms_of({"c": 1e-2}, RIGHT, never, "it")
    with pytest.raises(ToleranceError, match=r"tolerance\['zero'\]: this output is"):
        norms_of({"zero": 1e-2}, RIGHT, never, "it")


def test_autocast_is_the_error_of_the_baseline() -> None:
    other = run(a=[3.0, 0.3], b=[0.4, 4.0], zero=[0.0])
    norms = norms_of("autocast", RIGHT, lambda: other, "it")
    assert norms.target == pytest.approx(0.1)
    with pytest.raises(ToleranceError, match=r"error of it on these .* is 0, which"):
        norms_of("autocast", RIGHT, lambda: RIGHT, "it")


def test_outputs_without_a_size_leave_errors_as_they_are() -> None:
    for strange in (run(a=[0.0]), run(a=[inf])):
        assert norms_of(1.0, strange, never, "it").factors == {"a": 1.0}


def test_autocast_is_not_run_where_there_is_nothing_to_bound() -> None:
    for strange in (run(), run(a=[inf])):
        assert norms_of("autocast", strange, never, "it").target == inf
