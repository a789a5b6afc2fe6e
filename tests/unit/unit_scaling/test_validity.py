"""Cosines of gradients: computed without overflow, and for each framework."""

import math

import numpy as np
import pytest

from amprewrite.errors import ArgumentError
from amprewrite.unit_scaling import check_gradient_validity
from amprewrite.unit_scaling.validity import cosine


def test_a_cosine_knows_no_size():
    x = np.array([1.0, 2.0, 3.0])
    assert cosine(x * 1e-200, x * 1e200) == pytest.approx(1)
    assert cosine(x, -x) == pytest.approx(-1)
    assert cosine(np.array([[1.0], [0.0]]), np.array([[0.0], [1.0]])) == 0


@pytest.mark.parametrize("x", [[0.0, 0.0], [1.0, np.inf], [np.nan, 1.0], []])
def test_nothing_has_no_direction(x):
    assert math.isnan(cosine(np.array(x), np.ones(len(x))))


def test_what_is_no_model_is_refused():
    with pytest.raises(ArgumentError, match="cannot differentiate a int"):
        check_gradient_validity(3, ())
