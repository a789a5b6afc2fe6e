import pytest

from amprewrite.verify.rows import DiscreteError


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
