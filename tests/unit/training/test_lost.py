"""Counts of lost updates of arrays, by hand and at the edges of the rule."""

import numpy as np
import pytest

from amprewrite.training.lost import UpdateCounts, count_lost, together


@pytest.mark.parametrize(
    ("name", "half"),
    [("float16", 2.0**-11), ("bfloat16", 2.0**-8), ("float8_e5m2", 2.0**-3)],
)
def test_updates_below_half_the_distance_to_the_next_number_are_lost(name, half):
    weights = np.array([1.0, 1.0, 1.0, 1.0, -1.0, 1.0])
    # A tie goes to the even number, which 1 is; below 1 the distance is half as large.
    moved = half * np.array([0.99, 1.0, 1.01, -0.51, 0.49, 0.0])
    assert count_lost(weights, moved, name).lost == 3
    found = count_lost(weights, moved, name)
    assert (found.weights, found.updates, found.share) == (6, 5, 0.6)


def test_weights_of_another_format_are_rounded_before():
    # 1 + 2**-9 is stored as 1 in bfloat16: 2**-8 more is a tie, and lost.
    assert count_lost(np.array([1 + 2.0**-9]), np.array([2.0**-8]), "bfloat16").lost
    assert not count_lost(np.array([1 + 2.0**-9]), np.array([2.0**-8]), "float32").lost


def test_numbers_that_are_not_finite_lose_nothing():
    weights = np.array([1.0, np.inf, np.nan, 65504.0])
    found = count_lost(weights, np.array([np.nan, 1.0, 1.0, 65504.0]), "float16")
    assert (found.updates, found.lost) == (4, 1)  # infinity stays infinity


def test_counts_are_added_up_by_parameter():
    one = UpdateCounts({"w": count_lost(np.ones(4), np.full(4, 2.0**-12), "float16")})
    two = UpdateCounts(
        {
            "w": count_lost(np.ones(4), np.full(4, 1.0), "float16"),
            "b": count_lost(np.ones(2), np.zeros(2), "float32"),
        }
    )
    found = together([one, two])
    assert (found.parameters["w"].share, found.parameters["b"].share) == (0.5, 0.0)
    assert (found.total.weights, found.share, found.total.format) == (10, 0.5, "mixed")
    assert str(one) == (
        "100.0% of 4 updates are lost in float16\n  w 100.0% of 4 float16"
    )
    assert together([]).share == 0.0
