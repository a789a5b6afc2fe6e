"""JSON data read as a plan: what is refused, with the place of every mistake."""

import json
from dataclasses import MISSING, fields, replace
from typing import Any

import pytest

from amprewrite import Plan
from amprewrite.errors import PlanMismatchError
from amprewrite.plan import Decision
from amprewrite.plan.file import ADDED
from amprewrite.policy import OpClass, Rule
from tests.plan_text import SMALL, plan_data, plan_of


def refusal(data: object) -> PlanMismatchError:
    with pytest.raises(PlanMismatchError) as caught:
        Plan.from_json(data, "mine")
    return caught.value


def test_a_file_that_nests_what_is_flat_is_refused() -> None:
    table: Any = 0
    for _ in range(30):
        table = [table]
    assert refusal({**plan_data(), "casts": table}).mistakes == (
        "is nested deeper than 16",
    )


@pytest.mark.parametrize(
    "wrong", [None, [], {}, {"format": 1}, {"format": "2"}, {"format": 2.0}]
)
def test_another_format_is_refused_with_what_to_do(wrong: object) -> None:
    message = str(refusal(wrong))
    assert message.startswith("mine: is no plan of format 2 (found ")
    assert "make it anew with amprewrite.inspect and Plan.save" in message


@pytest.mark.parametrize(
    "field", [k for k in plan_data() if k != "format" and k not in ADDED["Plan"]]
)
def test_a_missing_field_is_named(field: str) -> None:
    table = plan_data()
    del table[field]
    assert refusal(table).mistakes == (f"{field}: missing",)


@pytest.mark.parametrize(
    "field", [k for k in plan_data()["decisions"][0] if k not in ADDED["Decision"]]
)
def test_a_missing_field_of_a_decision_is_named(field: str) -> None:
    table = plan_data()
    del table["decisions"][1][field]
    assert refusal(table).mistakes == (f"decisions[1].{field}: missing",)


def test_a_file_from_before_a_field_was_added_is_the_same_plan() -> None:
    rule = Rule(op_class=OpClass.DENY, op="exp")
    plan = plan_of(SMALL, overrides=[rule])
    table = json.loads(json.dumps(plan.to_json()))
    older = [(table, "Plan"), (table["overrides"][0], "Rule")]
    older += [(decision, "Decision") for decision in table["decisions"]]
    for part, kind in older:
        for field in ADDED[kind]:
            del part[field]
    assert Plan.from_json(table) == replace(plan, target="")


def test_a_field_that_is_there_is_read_although_it_may_be_missing() -> None:
    table = plan_data()
    table["recompute"] = {"regions": 5}
    (mistake,) = refusal(table).mistakes
    assert mistake.startswith("recompute.regions: found 5; ")


def test_every_added_field_has_a_default() -> None:
    for kind in (Decision, Plan, Rule):
        known = {field.name: field for field in fields(kind)}
        for name in ADDED[kind.__name__]:
            field = known[name]
            assert not (field.default is field.default_factory is MISSING)
    assert set(ADDED) == {"Decision", "Plan", "Rule"}


def test_every_mistake_is_listed_with_its_place() -> None:
    table = plan_data()
    table["low"] = "banana"
    table["decisions"][0]["op_class"] = "alloww"
    table["decisions"][1]["reason"] = 5
    table["casts"][0]["to_dtype"] = "evil"
    table["casts"][0]["folding"] = "load"
    table["casts"][0]["bytes"] = -1
    table["storage"] = "abc"
    found = refusal(table)
    assert str(found).startswith("mine: 7 mistakes\n  low: found 'banana'; want ")
    places = [line.partition(":")[0] for line in found.mistakes]
    assert places == [
        "low",
        "decisions[0].op_class",
        "decisions[1].reason",
        "casts[0].to_dtype",
        "casts[0].bytes",
        "casts[0].folding",
        "storage",
    ]
    assert "found 'alloww'; want allow, " in found.mistakes[1]
    assert "(did you mean 'allow'?)" in found.mistakes[1]


def test_types_are_strict() -> None:
    table = plan_data()
    table["training"] = 1
    table["casts"][0]["saturate"] = "yes"
    table["casts"][0]["trips"] = 1.0
    places = [line.partition(":")[0] for line in refusal(table).mistakes]
    assert places == ["casts[0].saturate", "casts[0].trips", "training"]


def test_an_unknown_field_is_refused() -> None:
    table = plan_data()
    table["casts"][1]["colour"] = "red"
    assert refusal(table).mistakes == ("casts[1].colour: unknown field",)


def test_what_is_no_json_data_is_refused() -> None:
    assert "is no JSON data" in str(refusal({**plan_data(), "captured": object()}))
    assert "invalid JSON" in str(refusal({**plan_data(), "captured": "\ud800"}))
