"""Reasons for modules and compounds."""

import pytest

from amprewrite.errors import PlanMismatchError
from amprewrite.plan.text import because, explain
from tests.plan_text import plan_of

TEXT = """
%x: f32[4,8] input
%w: f32[8,8] parameter
linear = linear(%x, %w) -> %h: f32[4,8]
  | path="body.0" source="m.py:1"
add = add(%h) -> %b: f32[4,8]
  | path="body.1" source="m.py:2" calls=["softmax#1"]
square = square(%b) -> %q: f32[4,8]
  | path="body.1" source="m.py:3" calls=["softmax#1"]
mean = mean(%q) -> %m: f32[4]
  | path="body.1" source="m.py:4"
relu = relu(%h) -> %r: f32[4,8]
return %m, %r
"""


def test_causes_are_a_sentence_with_lines() -> None:
    plan = plan_of(TEXT)
    assert because(plan, plan.by_op["add"]) == (
        "square (m.py:3) reads it, and mean (m.py:4) reads that"
    )
    assert because(plan, plan.by_op["relu"]) == "it reads linear (m.py:1)"


def test_a_module_is_explained_by_reason() -> None:
    assert list(explain(plan_of(TEXT), "body.1")) == [
        "body.1: 3 f32, 1 cast at run time",
        "  softmax: full (2 ops)",
        (
            "  f32      add and square (m.py:2 and m.py:3): mean wants full precision, "
            "since square (m.py:3) reads it, and mean (m.py:4) reads that"
        ),
        "  f32      mean (m.py:4): adds many values",
        "  cast     %h bf16 -> f32 for add (m.py:2)",
    ]


@pytest.mark.parametrize("name", ["softmax", "softmax#1"])
def test_a_compound_is_explained_with_its_places(name: str) -> None:
    lines = list(explain(plan_of(TEXT), name))
    assert lines[:2] == ["softmax: full (2 ops)", "  at       body.1 m.py:2"]
    assert lines[2].startswith("  f32      add and square")


def test_operands_in_reasons_are_not_named_one_by_one() -> None:
    (line,) = [
        x for x in explain(plan_of(TEXT), "body") if "linear" in x and "bf16" in x
    ][:1]
    assert line == "  bf16     linear (m.py:1): linear is allow in bf16"


@pytest.mark.parametrize(
    ("name", "near"), [("body.2", "body.0"), ("softmx", "softmax")]
)
def test_what_is_not_there_is_refused_with_similar_names(name: str, near: str) -> None:
    with pytest.raises(PlanMismatchError, match=rf"no op '{name}'.*similar: .*{near}"):
        explain(plan_of(TEXT), name)
