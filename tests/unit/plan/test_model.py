"""A plan as data: names, views of it, its JSON form."""

import dataclasses
import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from amprewrite import Plan
from amprewrite.errors import PlanMismatchError
from amprewrite.plan import Cast, Cost
from tests.plan_text import plan_of

TEXT = """
%x: f32[4,s0] input
%w: f32[8,8] parameter
mask = arange() -> %mask: f32[4]
linear = linear(%x, %w) -> %h: f32[4,8]
  | native="aten.linear.default" path="body.0" source="model.py:7" masks=[0]
exp = exp(%h) -> %e: f32[4,8]
scan = scan(%e) -> %s: f32[4,8]
  | native="mylib.scan.default"
again = linear(%s, %w) -> %y: f32[4,8]
  | native="aten.linear.default"
return %y
"""


def a_plan(policy: str = "bf16") -> Plan:
    return plan_of(TEXT, policy)


def test_decisions_are_found_by_op() -> None:
    plan = a_plan()
    assert plan.by_op["exp"].op_class == "deny"
    assert list(plan.by_op) == ["mask", "linear", "exp", "scan", "again"]


def test_lowered_ops_compute_in_the_low_dtype() -> None:
    assert [d.op for d in a_plan().lowered] == ["linear", "again"]
    assert a_plan("off").lowered == ()


def test_unclassified_ops_are_those_that_no_policy_names() -> None:
    assert [d.native for d in a_plan().unclassified] == ["mylib.scan.default"]


def test_run_time_casts_are_not_folded() -> None:
    plan = a_plan()
    assert [c.value for c in plan.runtime_casts] == ["x", "h", "s", "y"]
    assert plan.cost.casts == 4


def test_consumers_name_each_op_once() -> None:
    cast = Cast(
        "x", "float32", "bfloat16", (2,), 12, "", (("a", 0), ("a", 1), ("b", 0))
    )
    assert cast.consumers == ("a", "b")


def test_json_comes_back_as_the_same_plan() -> None:
    plan = dataclasses.replace(
        a_plan().with_warnings("odd: “quotes”"), predicted_error=0.5, prices="measured"
    )
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


def test_a_saved_plan_is_loaded_equal(tmp_path: Path) -> None:
    plan = a_plan("fp16")
    plan.save(tmp_path / "plan.json")
    assert Plan.load(str(tmp_path / "plan.json")) == plan


def test_an_unknown_op_is_refused_with_similar_names() -> None:
    with pytest.raises(PlanMismatchError) as caught:
        a_plan().explain("lin")
    assert str(caught.value) == (
        "plan has no op 'lin' among 5, and no module or compound of that name; "
        "similar: linear"
    )


def test_an_unknown_op_without_similar_names() -> None:
    with pytest.raises(PlanMismatchError) as caught:
        a_plan().explain("conv")
    assert str(caught.value) == (
        "plan has no op 'conv' among 5, and no module or compound of that name"
    )


def test_warnings_are_added_to_a_copy() -> None:
    plan = a_plan()
    more = plan.with_warnings("one", "two")
    assert more.warnings == (*plan.warnings, "one", "two")
    assert "one" not in plan.warnings


def test_it_prints_as_its_summary() -> None:
    plan = a_plan()
    assert str(plan) == plan.summary()


def test_it_has_a_table_for_rich_and_for_notebooks() -> None:
    plan = a_plan()
    console = Console(width=100, record=True, file=StringIO())
    console.print(plan)
    assert "casts by module" in console.export_text()
    assert "casts by module" in plan._repr_html_()


def test_a_cost_has_no_lower_bound_unless_one_is_given() -> None:
    assert Cost(1, 2, 3, 4, 7).lower_bound is None
    assert Cost(1, 2, 3, 4, 7).gap is None


def test_the_gap_is_the_share_that_the_cheapest_plan_may_save() -> None:
    assert Cost(1, 2, 3, 4, 1000, lower_bound=999).gap == pytest.approx(1e-3)
    assert Cost(0, 0, 0, 0, 0, lower_bound=0).gap == 0.0


def test_a_plan_that_changes_nothing_says_so() -> None:
    assert a_plan().changes
    assert not a_plan("off").changes
    norm = "%z: c64[4] input\na = abs_square(%z) -> %y: c64[4]\nreturn %y"
    assert plan_of(norm, "promote").changes
    assert not plan_of(norm.replace("abs_square", "mul"), "promote").changes
