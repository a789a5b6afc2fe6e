"""A constraint makes one factor of several."""

import math

import pytest

from amprewrite.errors import UnitScalingError
from amprewrite.unit_scaling import CONSTRAINTS, apply_constraint


@pytest.mark.parametrize(
    ("constraint", "chosen"),
    [
        ("gmean", 4.0),
        ("amean", 5.0),
        ("hmean", 3.2),
        ("to_output_scale", 2.0),
        ("to_grad_input_scale", 8.0),
    ],
)
def test_two_factors_become_one(constraint, chosen):
    found = apply_constraint(constraint, 2.0, 8.0)
    assert found == pytest.approx((chosen, chosen), rel=1e-15)


@pytest.mark.parametrize(
    ("constraint", "chosen"),
    [
        ("gmean", 4.0),
        ("amean", 14 / 3),
        ("hmean", 24 / 7),
        ("to_output_scale", 2.0),
        ("to_left_grad_scale", 4.0),
        ("to_right_grad_scale", 8.0),
    ],
)
def test_three_factors_become_one(constraint, chosen):
    found = apply_constraint(constraint, 2.0, 4.0, 8.0)
    assert found == pytest.approx((chosen,) * 3, rel=1e-15)


@pytest.mark.parametrize("constraint", [None, ""])
def test_no_constraint_leaves_them(constraint):
    assert apply_constraint(constraint, 2.0, 8.0) == (2.0, 8.0)


def test_a_geometric_mean_does_not_overflow():
    assert apply_constraint("gmean", 1e200, 1e200, 1e200)[0] == pytest.approx(1e200)


def test_an_unknown_constraint_is_named_with_the_nearest():
    message = "unknown constraint 'gmeen'; want one of gmean.*did you mean 'gmean'"
    with pytest.raises(UnitScalingError, match=message):
        apply_constraint("gmeen", 1.0, 2.0)


@pytest.mark.parametrize(
    ("constraint", "count"),
    [("to_grad_input_scale", 3), ("to_left_grad_scale", 2), ("to_right_grad_scale", 1)],
)
def test_another_number_of_factors_is_refused(constraint, count):
    with pytest.raises(UnitScalingError, match=f"{count} were given"):
        apply_constraint(constraint, *[1.0] * count)


def test_no_factor_is_refused():
    with pytest.raises(UnitScalingError, match="at least one factor"):
        apply_constraint("gmean")


def test_every_constraint_gives_a_factor_between_those_given():
    for name, (count, _) in CONSTRAINTS.items():
        given = [2.0, 4.0, 8.0][: count or 3]
        chosen = apply_constraint(name, *given)[0]
        assert min(given) <= chosen <= max(given)
        assert math.isfinite(chosen)
