"""Minimum cuts: compared with trying all assignments, also beyond 32 bits."""

from itertools import product
from random import Random

import numpy as np
import pytest

from amprewrite.passes.mincut.max_flow import (
    FULL,
    INFINITE,
    LOW,
    Terms,
    minimum_cut,
    price,
)


def test_a_term_costs_only_where_one_is_full_and_the_other_low() -> None:
    terms = Terms()
    terms.pay(2, 3, 5)
    for two, three in product((False, True), repeat=2):
        assignments = np.array([False, True, two, three])
        assert price(terms.columns(), assignments) == (5 if two and not three else 0)


def test_terms_that_cannot_cost_are_left_out() -> None:
    terms = Terms()
    terms.pay(2, 2, 5)
    terms.pay(LOW, 2, 5)
    terms.pay(2, FULL, 5)
    terms.pay(2, 3, 0)
    assert terms.cost == []


def test_what_costs_the_same_on_both_sides_is_full() -> None:
    terms = Terms()
    terms.pay(2, LOW, 7)
    terms.pay(FULL, 2, 7)
    assert minimum_cut(4, terms.columns()).tolist() == [False, True, True, True]


def test_an_implication_is_kept_whatever_it_costs() -> None:
    terms = Terms()
    terms.pay(FULL, 2, 100)
    terms.imply(2, 3)
    terms.pay(3, LOW, 1)
    assert minimum_cut(4, terms.columns()).tolist() == [False, True, True, True]


@pytest.mark.parametrize("largest", [10, 1000, 2**33, 2**44])
def test_a_cut_is_the_cheapest_and_most_full_of_all_sides(largest: int) -> None:
    for seed in range(60):
        random = Random(seed)
        size, terms = random.randint(3, 8), Terms()
        for _ in range(random.randint(1, 20)):
            pair = random.randrange(size), random.randrange(size)
            forbids = random.random() < 0.2 and pair != (FULL, LOW)
            terms.pay(*pair, INFINITE if forbids else random.randint(1, largest))
        full, low, cost = columns = terms.columns()
        choices = product((False, True), repeat=size - 2)
        assignments = [np.array([False, True, *choice]) for choice in choices]
        allowed = [s for s in assignments if not ((cost < 0) & s[full] & ~s[low]).any()]
        if not allowed or not terms.cost:
            continue
        best = min((price(columns, s), -int(s.sum())) for s in allowed)
        found = minimum_cut(size, columns)
        assert (price(columns, found), -int(found.sum())) == best
