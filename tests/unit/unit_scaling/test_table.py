"""The table of rules: names, extents, and mistakes in either."""

import pytest

from amprewrite.errors import UnitScalingError
from amprewrite.unit_scaling import RULES, derive_rule, rule

LINEAR = {"fan_in": 4, "fan_out": 9, "batch": 16}


def test_a_rule_has_its_extents_and_source():
    found = derive_rule("linear", **LINEAR)
    assert found.factors.forward == 0.5
    assert (found.kind, found.shape) == ("closed form", LINEAR)
    assert found.why == "sums of independent terms"


def test_the_names_cover_the_scaled_ops():
    wanted = """linear linear_readout matmul conv1d conv2d gelu silu silu_glu relu
    leaky_relu hardtanh tanh sigmoid elu softplus softmax dropout layer_norm rms_norm
    add residual_split residual_add residual_apply embedding
    scaled_dot_product_attention cross_entropy mse_loss"""
    assert set(wanted.split()) <= set(RULES)


def test_an_unknown_name_is_told_the_nearest():
    with pytest.raises(UnitScalingError, match="'gellu'; did you mean 'gelu'"):
        rule("gellu")


def test_a_name_far_from_all_is_told_all():
    with pytest.raises(
        UnitScalingError, match=r"there are abs, add.*measure_rule make"
    ):
        rule("zzz")


@pytest.mark.parametrize("mult", [0.0, -1.0, float("nan"), float("inf")])
def test_a_multiplier_is_finite_and_above_zero(mult):
    with pytest.raises(UnitScalingError, match="gelu: mult is"):
        rule("gelu", mult)


def test_extents_that_are_missing_are_named():
    with pytest.raises(
        UnitScalingError,
        match="linear is given without fan_out, batch; its extents: fan_in, fan_out",
    ):
        rule("linear", fan_in=4)


def test_extents_that_are_not_known_are_named():
    with pytest.raises(UnitScalingError, match=r"gelu does not take alpha; .*: none"):
        rule("gelu", alpha=1.0)
    message = "softmax is given without size and does not take dim"
    with pytest.raises(UnitScalingError, match=message):
        rule("softmax", dim=-1)


def test_a_multiplier_reaches_the_rules_that_have_one():
    assert rule("softmax", 4.0, size=16) != rule("softmax", size=16)
    assert rule("linear", 4.0, **LINEAR) == rule("linear", **LINEAR)
