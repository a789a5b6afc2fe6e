"""Differences between a value and its mean want full precision."""

import pytest

from tests.plan_text import plan_of

TEXT = """
    %x: f32[4,8] input
    %w: f32[8,8] parameter
    dot = matmul(%x, %w) -> %h: f32[4,8]
    big = mul(%h, %h) -> %b: f32[4,8]
    {statistic}
    sub = sub(%b, %m) -> %d: f32[4,8]
    last = matmul(%d, %w) -> %y: f32[4,8]
    return %y
"""


@pytest.mark.parametrize(
    "statistic",
    [
        "mean = mean(%b) -> %m: f32[4,1]",
        "sum = sum(%b) -> %s: f32[4,1]\n    div = div(%s) -> %m: f32[4,1]",
        (
            "view = reshape(%b) -> %v: f32[32]\n    mean = mean(%v) -> %n: f32[1]\n"
            "    wide = expand(%n) -> %m: f32[4,8]"
        ),
    ],
)
def test_what_is_centred_is_computed_in_full(statistic: str) -> None:
    plan = plan_of(TEXT.format(statistic=statistic))
    assert plan.by_op["big"].precision == "float32"
    assert plan.by_op["big"].causes[0] in ("sub", "mean", "sum", "view")


@pytest.mark.parametrize(
    "other", ["exp = exp(%x) -> %m: f32[4,8]", "mean = mean(%h) -> %m: f32[4,1]"]
)
def test_other_differences_are_not(other: str) -> None:
    plan = plan_of(TEXT.format(statistic=other))
    assert plan.by_op["big"].precision == "bfloat16"
