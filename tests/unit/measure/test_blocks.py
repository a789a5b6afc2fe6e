"""Values are read block by block, and compared so."""

from math import inf, nan

import numpy as np
import pytest

from amprewrite.measure.runs import (
    SIZE,
    are_equal,
    blocks,
    bounded,
    is_equal,
    values_of,
)

LONG = np.arange(2.0 * SIZE + 3).reshape(-1, 1)


def test_blocks_are_all_elements_in_order_in_float64():
    turned = LONG.astype(np.float32).T
    rows = list(blocks(LONG, turned))
    assert [one.size for one, _ in rows] == [SIZE, SIZE, 3]
    for column in zip(*rows, strict=True):
        joined = np.concatenate(column)
        assert joined.dtype == np.float64
        np.testing.assert_array_equal(joined, LONG[:, 0])


def test_an_order_in_memory_is_no_order_of_elements():
    (rows,) = blocks(np.asfortranarray([[1.0, 2.0], [3.0, 4.0]]))
    assert rows[0].tolist() == [1, 2, 3, 4]


def test_values_beyond_a_limit_are_zero():
    by = values_of(np.array([1.0, -2.0, 3.0, nan, -inf]))
    assert by.shape == (5,)
    found = bounded(np.arange(1.0, 6.0), by, 2.0)
    assert (found.shape, found.size) == ((5,), 5)
    assert found.block(0, 5).tolist() == [1, 2, 0, 0, 0]


@pytest.mark.parametrize("place", [0, 2 * SIZE + 2])
def test_one_element_of_many_makes_a_difference(place):
    other = LONG.copy()
    other[place] = nan
    assert is_equal(LONG, LONG.copy())
    assert not is_equal(LONG, other)
    assert are_equal([LONG, other], [LONG, other.copy()])  # NaN equals NaN
    assert not are_equal([LONG, other], [LONG, LONG])


def test_shapes_and_counts_make_a_difference():
    assert not is_equal(LONG, LONG.T)
    assert not are_equal([LONG], [])
