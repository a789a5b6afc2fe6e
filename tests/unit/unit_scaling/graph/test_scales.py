"""Scale plans: formulas, saving, explaining, comparing."""

import pytest

from amprewrite.errors import UnitScalingError
from amprewrite.unit_scaling.graph.scales import Scale, ScalePlan, extent, resolve

BATCH = (extent("x", 0) * 16) ** -0.5


@pytest.fixture
def plan():
    scales = (
        Scale("w", "linear", 1, 1.0, BATCH, "closed form", cut=True, why="rows"),
        Scale("linear", "linear", None, 0.25, 1.0, "closed form", "to_output_scale"),
    )
    return ScalePlan(scales, ("add",), {"linear": "closed form"}, 2, 1)


def test_a_formula_is_computed_from_extents():
    assert resolve(BATCH, lambda *_: 4) == 0.125
    assert str(BATCH) == "(size(x, 0) * 16) ** -0.5"
    assert resolve(2 / (1 + extent("x", 1)), lambda *_: 3) == 0.5
    assert resolve(0.5, lambda *_: 3) == 0.5


def test_a_plan_is_saved_and_loaded(plan, tmp_path):
    plan.save(tmp_path / "scales.json")
    assert ScalePlan.load(tmp_path / "scales.json") == plan


def test_a_plan_explains_and_compares(plan):
    assert "input w (cut edge): forward 1, backward (size(x, 0)" in plan.explain(
        "linear"
    )
    assert plan.summary() == (
        "2 scales; 1 cut edges of 2; 1 residual additions; rules: 1 closed form"
    )
    other = ScalePlan(plan.scales[:1], ("add",), plan.rules, 2, 1)
    (line,) = plan.diff(other)
    assert line.startswith("- linear: result linear: forward 0.25")
    assert not plan.diff(plan)


def test_an_op_that_is_not_there_is_refused(plan):
    with pytest.raises(UnitScalingError, match=r"no op 'conv'.*there are linear"):
        plan.explain("conv")
