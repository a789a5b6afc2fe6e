"""Counts of one array, and of several together."""

import math

import numpy as np

from amprewrite.measure.exponents import Exponents
from amprewrite.measure.exponents.counting import exponents_of
from amprewrite.measure.exponents.rows import together


def test_counts_are_by_power_of_two():
    values = [0.0, -0.0, 1.0, -1.5, 2.0, 5e-324, -math.inf, math.nan, 0.75]
    found = exponents_of(np.array([values]), "x", "activation", "up")
    assert found.counts == {-1074: 1, -1: 1, 0: 2, 1: 1}
    assert (found.zeros, found.nonfinite, found.largest) == (2, 2, 2.0)
    assert (found.size, found.path) == (9, "up")


def test_an_empty_array_has_none():
    found = exponents_of(np.ones((0, 3), np.float16), "x", "weight")
    assert (found.size, found.largest, found.counts) == (0, 0.0, {})


def test_tensors_are_added_up_and_what_is_not_known_is_bounded():
    rows = [
        Exponents("a", "weight", "", {0: 2, 3: 1}, 1, 0, 9.0),
        Exponents("b", "weight", "", {3: 2, -2: 1}, 0, 4),
    ]
    found = together(rows, "all", "weight")
    assert found.counts == {-2: 1, 0: 2, 3: 3}
    assert (found.zeros, found.nonfinite, found.largest) == (1, 4, 16.0)
    assert Exponents("c", "weight", "", {1023: 1}, 0, 0).bound > 1.7e308
