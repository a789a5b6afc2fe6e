"""Rules of elementwise functions: closed form first, then quadrature."""

from typing import Any

import numpy as np
import pytest

from amprewrite.errors import UnitScalingError
from amprewrite.unit_scaling import derive_rule, rule, rule_of_function


def test_plain_hardtanh_shrinks_by_known_scales():
    factors: Any = rule("hardtanh")
    forward, backward = factors
    assert (1 / forward, 1 / backward) == pytest.approx((0.718, 0.826), abs=5e-4)


def test_the_gradient_of_softplus_counts_its_mean():
    """1/rms of the derivative; 1/std of it would be 1/0.208."""
    assert rule("softplus")[1] == pytest.approx(1 / 0.5416, rel=1e-4)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("gelu", "closed form"), ("silu", "quadrature"), ("relu_glu", "closed form")],
)
def test_a_rule_says_its_kind(name, kind):
    assert derive_rule(name).kind == kind


def test_a_gated_unit_has_factors_for_both_inputs():
    forward, backward = rule("silu_glu")
    assert 1 / forward == pytest.approx(0.5965, abs=1e-4)
    assert backward == pytest.approx({"input": forward, "gate": 1 / 0.6160}, rel=1e-4)


def test_parameters_change_a_rule():
    assert rule("elu", alpha=0.5) != rule("elu")
    assert rule("leaky_relu", negative_slope=0.0) == rule("relu")


def test_any_function_has_a_rule_by_quadrature():
    def silu(x):
        return x / (1 + np.exp(-x))

    def slope(x):
        gate = 1 / (1 + np.exp(-x))
        return gate * (1 + x * (1 - gate))

    found = rule_of_function(silu, slope, 2.0, name="swish")
    assert found.pair() == pytest.approx(rule("silu", 2.0), rel=1e-12)
    assert (found.op, found.kind) == ("swish", "quadrature")


@pytest.mark.parametrize("mult", [20.0, 50.0])
def test_a_scale_beyond_float64_is_refused(mult):
    with pytest.raises(UnitScalingError, match=f"exp with mult={mult:g}: the"):
        rule("exp", mult)


def test_a_constant_has_no_rule():
    with pytest.raises(UnitScalingError, match="variance 0"):
        rule_of_function(np.zeros_like, np.zeros_like)
