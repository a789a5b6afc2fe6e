"""Factors under a constraint, and rules as pairs and as text."""

import pytest

from amprewrite.errors import UnitScalingError
from amprewrite.unit_scaling.rules import Factors, Rule, constrained

FACTORS = Factors(4.0, {"input": 9.0, "weight": 5.0}, ("input",))


def test_a_constraint_joins_the_output_with_inputs_and_leaves_weights():
    found = constrained(FACTORS, "gmean")
    assert found.forward == pytest.approx(6)
    assert found.backward == pytest.approx({"input": 6, "weight": 5})


def test_the_factors_given_are_not_changed():
    constrained(FACTORS, "to_output_scale")
    assert FACTORS.backward == {"input": 9.0, "weight": 5.0}


def test_no_constraint_changes_nothing():
    assert constrained(FACTORS, None) == FACTORS


def test_an_op_of_one_input_has_no_left_gradient():
    with pytest.raises(UnitScalingError, match="joins 3 factors"):
        constrained(FACTORS, "to_left_grad_scale")


def test_a_pair_has_one_number_for_one_input_and_a_mapping_for_several():
    one = Rule("f", 1.0, "closed form", Factors(2.0, {"input": 3.0}, ()), "so")
    assert one.pair() == (2.0, 3.0)
    several = Rule("f", 1.0, "closed form", FACTORS, "so")
    assert several.pair() == (4.0, {"input": 9.0, "weight": 5.0})


def test_a_rule_prints_its_factors_and_its_kind():
    found = Rule("linear", 1.0, "closed form", FACTORS, "sums")
    assert str(found) == (
        "linear(mult=1): forward 4, backward input 9, weight 5 (closed form: sums)"
    )
