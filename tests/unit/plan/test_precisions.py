"""Precisions of several ops in words."""

from amprewrite.plan.lines import (
    counts_text,
    float_counts,
    listed,
    makes_floats,
    plural,
    precisions_text,
)
from tests.plan_text import plan_of

TEXT = """
%x: f32[4,8] input
%w: f32[8,8] parameter
linear = linear(%x, %w) -> %h: f32[4,8]
exp = exp(%h) -> %e: f32[4,8]
gt = gt(%e, %h) -> %t: bool[4,8]
return %e, %t
"""


def test_equal_precisions_are_one_word_and_others_are_counted() -> None:
    plan = plan_of(TEXT)
    low, full, _ = plan.decisions
    assert precisions_text(plan, [low]) == "bf16"
    assert precisions_text(plan, [full]) == "full"
    assert precisions_text(plan, [full, low]) == "1 bf16, 1 f32"
    assert precisions_text(plan_of(TEXT, "off"), [full]) == "f32"


def test_truth_values_have_no_precision() -> None:
    plan = plan_of(TEXT)
    assert not makes_floats(plan.by_op["gt"])
    assert counts_text(plan, float_counts(plan.decisions)) == "1 bf16, 1 f32"


def test_numbers_and_lists_of_words() -> None:
    assert (plural(1, "op"), plural(7, "op")) == ("1 op", "7 ops")
    assert listed(["a"]) == "a"
    assert listed(["a", "b"]) == "a and b"
    assert listed(list("abcde"), 2) == "a, b and 3 more"
    assert listed([]) == ""
