from math import inf, nan

import pytest

from amprewrite.verify.rows import DiscreteError, GradientError


@pytest.mark.parametrize(
    ("differing", "original", "jitted", "violation"),
    [(0, 0, 0, False), (1, 0, 0, True), (2, 2, 0, False), (0, 1, 2, True)],
)
def test_integers_may_differ_as_far_as_in_the_original(
    differing, original, jitted, violation
):
    row = DiscreteError("n", "int64", 8, differing, original, jitted)
    assert row.is_violation is violation


def test_a_line_says_how_many_differ_and_from_what():
    line = DiscreteError("classes", "int64", 200, 4, 1).describe("float64")
    assert line == (
        "output classes (int64): 4 of 200 elements (2.00%) differ from float64, in the "
        "original itself 1"
    )
    assert "(0.00%)" in DiscreteError("none", "bool", 0, 0, 0).describe("float64")


@pytest.mark.parametrize(
    ("error", "bound", "violation"),
    [(0.1, 0.2, False), (0.3, 0.2, True), (0.3, None, False), (inf, None, True)],
)
def test_a_gradient_is_judged_by_its_bound(error, bound, violation):
    row = GradientError("w", error, 0.9, bound=bound)
    assert row.is_violation is violation


def test_a_line_names_the_gradient_and_its_error():
    row = GradientError("w", 0.3, 0.9, bound=0.02)
    line = "gradient of w: relative error 0.3; want at most 0.02 against float64"
    assert row.describe("float64") == line
    lost = GradientError("w", 1.0, nan, bound=0.02).describe("float64")
    assert lost.startswith("gradient of w: zero everywhere, relative error 1; want")
    known = GradientError("w", 1.0, nan, zero=True).describe("float32")
    assert known == "gradient of w: relative error 1 against float32"
