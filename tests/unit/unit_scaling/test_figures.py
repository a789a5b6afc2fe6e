"""The figures of an activation hold the rule beside an experiment."""

import numpy as np
import pytest

from amprewrite.errors import UnitScalingError
from amprewrite.unit_scaling import figures_of, rule

HARDTANH = figures_of("hardtanh")


def test_the_plain_curve_is_the_function():
    curve = HARDTANH.plain
    assert curve.y == pytest.approx(curve.x.clip(-1, 1))
    assert set(curve.slope) == {0.0, 1.0}


def test_histograms_have_the_published_scales():
    x, y, slope = HARDTANH.spreads
    assert (x.rms, y.rms, slope.rms) == pytest.approx((1, 0.72, 0.83), abs=5e-3)
    assert (y.rule, slope.rule) == pytest.approx((0.71837, 0.82625), abs=1e-5)
    assert y.share.sum() == pytest.approx(1)
    assert y.share[[0, -1]] == pytest.approx([0.16, 0.16], abs=0.02)  # cut there


def test_the_experiment_follows_the_rule_on_the_whole_sweep():
    sweep = HARDTANH.sweep
    assert (sweep.mults[0], sweep.mults[15], sweep.mults[-1]) == (1 / 8, 1, 8)
    assert sweep.sampled_output == pytest.approx(sweep.output, rel=0.01)
    assert sweep.sampled_gradient == pytest.approx(sweep.gradient, rel=0.01)
    assert sweep.output[15] == pytest.approx(1 / rule("hardtanh")[0])


def test_scaled_curves_have_the_factor_both_ways():
    plain, scaled, third = HARDTANH.scaled
    assert plain is HARDTANH.plain
    assert (scaled.y.max(), scaled.slope.max()) == pytest.approx(
        (1.392, 1.392), abs=1e-3
    )
    assert (third.y.max(), third.slope.max()) == pytest.approx((1.101, 3.304), abs=1e-3)


def test_any_activation_has_figures():
    given = {"sample": 2**12, "mults": (1.0, 4.0), "constraint": None}
    found = figures_of("elu", alpha=0.5, **given)
    forward, backward = rule("elu", alpha=0.5)
    scaled = found.scaled[1]
    assert scaled.y[-1] == pytest.approx(2.5 * forward)
    assert scaled.slope[-1] == pytest.approx(backward)
    assert np.isfinite(found.sweep.sampled_gradient).all()
    assert figures_of("silu", **given).kind == "quadrature"


@pytest.mark.parametrize("op", ["linear", "silu_glu", "nothing"])
def test_other_ops_have_none(op):
    with pytest.raises(UnitScalingError, match=f"no figures for '{op}'; want one"):
        figures_of(op)
