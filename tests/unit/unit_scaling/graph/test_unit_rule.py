"""Regions get deviation 1, gains and gates root mean square 1."""

import numpy as np
import pytest

from amprewrite.unit_scaling.graph.assign import of_region
from amprewrite.unit_scaling.rules import derive_rule, rule_of_function


def gain(x):
    return np.exp(0.01 * x)


def test_a_function_that_hardly_varies_is_a_gain():
    rule = rule_of_function(gain, lambda x: 0.01 * gain(x))
    assert rule.factors.forward > 90
    assert of_region(rule, "", named=False).forward == pytest.approx(1, rel=1e-3)
    assert of_region(rule, "", named=True).forward == rule.factors.forward


def test_a_gate_counts_its_mean():
    rule = derive_rule("sigmoid")
    found = of_region(rule, "sigmoid", named=True)
    assert found.forward == rule.factors.forward
    assert found.gate == pytest.approx(1 / 0.5416, rel=1e-3)
    assert found.backward == {-1: rule.factors.backward["input"]}
