"""What a framework is handed to plan within a tolerance."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from amprewrite.errors import ToleranceError
from amprewrite.passes.cost.cost import Objective
from amprewrite.passes.cost.cost_model import COMPILED
from amprewrite.passes.error_budget.budget import Budget
from amprewrite.plan import Plan
from amprewrite.plan.sensitivity import Measurements, Sensitivity
from amprewrite.policy import Matcher, load_policy
from tests.placement_problem import graph_of

GRAPH = graph_of("""
    %x: f32[512,512] input
    %w: f32[512,512] parameter
    linear = linear(%x, %w) -> %y: f32[512,512]
      | contracted=512
    return %y
""")


def budget(**rule: str) -> Budget:
    rules = [rule] if rule else []
    matcher = partial(Matcher, load_policy("bf16"), rules)
    return Budget(1e-3, matcher, Objective(COMPILED))


def planned(found: Budget, error: float, target: float = 1e-3):
    keys = found.probes(GRAPH, keep_parameter_dtype=False)
    sensitivity = Sensitivity(
        dict.fromkeys(keys.stored, error), dict.fromkeys(keys.read, error), 4
    )
    return found.plan(
        Measurements(
            GRAPH,
            training=False,
            captured="by hand",
            sensitivity=sensitivity,
            target=target,
            measure=lambda plan: sensitivity.predicted(plan, GRAPH),
        )
    )


def test_it_plans_within_the_target() -> None:
    low, full = planned(budget(), 1e-9), planned(budget(), 1e-3)
    assert (len(low.lowered), len(full.lowered)) == (1, 0)
    assert (low.placement, low.captured) == ("optimal", "by hand")
    assert full.predicted_error == 0.0


def test_a_plan_remembers_what_it_was_made_to_keep(tmp_path: Path) -> None:
    jointly = planned(budget(), 1e-9, target=2e-3)
    assert (jointly.tolerance, jointly.tolerances) == (2e-3, ())
    each = planned(replace(budget(), tolerance={"logits": 1e-3}), 1e-9)
    assert (each.tolerance, each.tolerances) == (None, (("logits", 1e-3),))
    for number, plan in enumerate((jointly, each)):
        plan.save(tmp_path / f"{number}.json")
        assert Plan.load(tmp_path / f"{number}.json") == plan


def test_overrides_are_followed_and_say_if_they_match_nothing() -> None:
    full = planned(budget(op="linear", **{"class": "deny"}), 1e-9)
    assert not full.lowered
    unused = planned(budget(op="conv", **{"class": "deny"}), 1e-9)
    assert any("matched no op" in line for line in unused.warnings)


def test_a_target_that_is_not_kept_is_an_error() -> None:
    with pytest.raises(ToleranceError):
        budget().plan(
            Measurements(
                GRAPH,
                training=False,
                captured="",
                sensitivity=Sensitivity({}, {}, 1),
                target=1e-3,
                measure=lambda _: 1.0,
            )
        )


def test_only_what_is_measured_beside_its_bound_may_use_all_of_it() -> None:
    known = Measurements(GRAPH, False, "", Sensitivity({}, {}, 1), 1e-3, lambda _: 0.0)
    assert budget().goal(known).share == 0.95
    assert replace(budget(), tolerance="autocast").goal(known).share == 1.0


def test_the_placement_promote_follows_the_same_rules() -> None:
    low = budget().promoted(GRAPH, keep_parameter_dtype=False, captured="by hand")
    assert (low.placement, low.captured, len(low.lowered)) == ("promote", "by hand", 1)
    full = budget(op="linear", **{"class": "deny"})
    assert not full.promoted(GRAPH, keep_parameter_dtype=False, captured="").lowered


def test_gradients_are_bounded_under_policies_with_8_bit_formats() -> None:
    assert not budget().bounds_gradients
    found = replace(budget(), matcher=partial(Matcher, load_policy("fp8")))
    assert found.bounds_gradients
    assert not replace(found, tolerance={"": 0.1}).bounds_gradients
