"""The rule of delayed scales on NumPy arrays."""

from typing import Any

import numpy as np
import pytest

from amprewrite.dtypes.rounding import quantise_scaled
from amprewrite.errors import ArgumentError
from amprewrite.training.delayed import DelayedRule

pytest.importorskip("ml_dtypes")

E4M3 = "float8_e4m3fn"
X = np.array([1.0, -3.0, 0.3], np.float32)


def run(rule, steps):
    amaxes: Any = np.zeros(rule.history, np.float32)
    made: Any = None
    saturated: Any = None
    for x in steps:
        made, amaxes, saturated = rule.apply(x, amaxes, E4M3, np)
    return made, amaxes, saturated


def test_stationary_numbers_have_the_current_scale():
    made, amaxes, saturated = run(DelayedRule(3), [X, X[::-1].copy(), X])
    np.testing.assert_array_equal(made, quantise_scaled(X, E4M3, "current"))
    assert amaxes.tolist() == [3, 3, 3]
    assert saturated == 0


def test_the_first_step_takes_the_current_scale():
    made, amaxes, _ = run(DelayedRule(2), [X * 1e-6])
    np.testing.assert_array_equal(made, quantise_scaled(X * 1e-6, E4M3, "current"))
    assert amaxes.tolist() == [np.float32(3e-6), 0]


def test_a_jump_is_saturated_and_counted():
    made, amaxes, saturated = run(DelayedRule(2), [X, X * 1000])
    assert made.tolist() == [448 / 128, -448 / 128, 448 / 128]
    assert saturated == 3
    assert amaxes.tolist() == [3000, 3]


@pytest.mark.parametrize(
    ("rule", "scale"),
    [
        (DelayedRule(3), 1),
        (DelayedRule(3, algorithm="most_recent"), 128),
        (DelayedRule(1), 128),
        (DelayedRule(3, margin=2), 0.25),
    ],
)
def test_the_history_the_margin_and_the_algorithm(rule, scale):
    """448 / 300 is one binary order of magnitude, 448 / 3 is 128."""
    tiny = np.array([2.0**-9 / scale, 2.0**-11 / scale], np.float32)
    made, _, _ = run(rule, [X * 100, X, tiny])
    assert made.tolist() == [tiny[0], 0]  # the least number of the format


def test_numbers_that_are_not_finite_do_not_count():
    x = np.array([1.0, np.inf, np.nan], np.float32)
    made, amaxes, saturated = run(DelayedRule(2), [x])
    assert (amaxes[0], saturated, made[0]) == (1, 0, 1)
    assert np.isnan(made[1:]).all()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"history": 0}, "history is 0 steps; want 1"),
        ({"algorithm": "min"}, "algorithm is 'min'; want 'max' or 'most_recent'"),
    ],
)
def test_mistakes(given, said):
    with pytest.raises(ArgumentError, match=said):
        DelayedRule(**given)
    with pytest.raises(ArgumentError, match="found format 'float9'; want one of"):
        DelayedRule().apply(X, np.zeros(16, np.float32), "float9", np)
