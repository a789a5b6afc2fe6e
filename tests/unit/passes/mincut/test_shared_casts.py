"""Casts as terms: a value pays once for all who share the cast."""

import numpy as np

from amprewrite.passes.mincut.max_flow import FULL, Terms, price
from amprewrite.passes.mincut.shared_casts import Group, Groups
from amprewrite.passes.placement.cast_rules import CastKey

STORED, ONE, OTHER = 2, 3, 4

DOWN, UP = (CastKey("v", dtype, "", 0, False, 1) for dtype in ("low", "full"))


def cheapest(terms: Terms, count: int, *assignments: bool) -> int:
    """Return the cost with the best side of the auxiliary variables."""
    full, low, cost = columns = terms.columns()
    costs: list[int] = []
    for number in range(2 ** (count - 5)):
        rest = [bool(number >> bit & 1) for bit in range(count - 5)]
        found = np.array([False, True, *assignments, *rest])
        if not ((cost < 0) & found[full] & ~found[low]).any():
            costs.append(price(columns, found))
    return min(costs)


def test_a_cast_down_is_paid_once_for_two_low_readers() -> None:
    groups, terms = Groups(), Terms()
    group = groups.by_key[DOWN] = Group(STORED, 6, up=False)
    group.uses += [ONE, OTHER]
    count = groups.add_to(terms, 5)
    assert cheapest(terms, count, True, False, False) == 6
    assert cheapest(terms, count, True, True, False) == 6
    assert cheapest(terms, count, True, True, True) == 0
    assert cheapest(terms, count, False, False, False) == 0


def test_a_cast_up_is_paid_once_for_two_full_readers() -> None:
    groups, terms = Groups(), Terms()
    group = groups.by_key[UP] = Group(STORED, 6, up=True)
    group.uses += [ONE, OTHER]
    count = groups.add_to(terms, 5)
    assert cheapest(terms, count, False, True, True) == 6
    assert cheapest(terms, count, False, True, False) == 6
    assert cheapest(terms, count, True, True, True) == 0


def test_a_single_reader_needs_no_auxiliary_variable() -> None:
    groups, terms = Groups(), Terms()
    groups.by_key[DOWN] = Group(STORED, 6, up=False, uses=[ONE])
    assert groups.add_to(terms, 5) == 5
    assert (terms.full, terms.low, terms.cost) == ([STORED], [ONE], [6])


def test_a_reader_that_is_tied_to_the_value_pays_nothing() -> None:
    groups, terms = Groups(), Terms()
    own = Group(STORED, 6, up=False, uses=[STORED])
    groups.by_key[DOWN] = own
    groups.add_to(terms, 5)
    assert terms.cost == []


def test_a_mix_with_a_full_operand_never_pays() -> None:
    groups = Groups()
    groups.mix(ONE, [(STORED, Group(STORED, 6, up=True)), (FULL, None)])
    assert groups.mixes == []


def test_a_mix_of_operands_on_one_side_pays_as_any_use() -> None:
    groups, group = Groups(), Group(STORED, 6, up=True)
    groups.mix(ONE, [(STORED, group), (STORED, group)])
    assert (groups.mixes, group.uses) == ([], [ONE])


def test_a_mix_of_operands_on_two_sides_is_listed() -> None:
    groups = Groups()
    pairs = [(STORED, Group(STORED, 6, up=True)), (OTHER, Group(OTHER, 8, up=True))]
    groups.mix(ONE, pairs)
    (mix,) = groups.mixes
    assert (mix.op, mix.stored) == (ONE, (STORED, OTHER))
    assert [group.mixes for group in mix.groups] == [(0,), (0,)]
