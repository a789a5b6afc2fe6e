"""Where a sequence of ops is cut, so that few bytes are kept at a time."""

from itertools import pairwise

import pytest

pytest.importorskip("torch")

from amprewrite.frameworks.torch_fx.probes.segments import cuts


def test_what_fits_is_not_cut():
    assert cuts([10] * 8, [1] * 8, 80) == []
    assert cuts([], [], 0) == []
    assert cuts([10], [1], 0) == []


def test_as_few_cuts_are_made_as_the_limit_wants():
    assert cuts([10] * 16, [1] * 16, 81) == [8]
    assert cuts([10] * 16, [1] * 16, 79) == [5, 11]


def test_without_enough_cuts_the_fewest_bytes_are_kept():
    found = cuts([10] * 16, [10] * 16, 1)
    bounds = [0, *found, 16]
    largest = max(10 * (two - one) for one, two in pairwise(bounds))
    assert largest + 10 * len(found) <= 80


def test_a_cut_is_where_few_bytes_are_alive():
    alive = [9] * 16
    alive[9] = 1
    assert cuts([10] * 16, alive, 100) == [9]


def test_where_cuts_keep_more_than_they_save_there_are_none():
    assert cuts([10] * 16, [200] * 16, 0) == []
