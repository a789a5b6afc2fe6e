"""Entries of single variables become terms."""

import numpy as np
import pytest

from amprewrite.passes.mincut.max_flow import FULL, LOW, minimum_cut, price
from amprewrite.passes.mincut.unary_costs import Ledger


def cost(ledger: Ledger, *assignments: bool) -> int:
    found = np.array([False, True, *assignments])
    return ledger.constant + price(ledger.terms.columns(), found)


def test_sizes_are_charged_by_side() -> None:
    ledger = Ledger(2, 4)
    side = ledger.new()
    ledger.size(side, 10)
    ledger.size(FULL, 10)
    ledger.size(LOW, 10)
    ledger.add_terms()
    assert cost(ledger, False) == 20 + 40 + 20
    assert cost(ledger, True) == 40 + 40 + 20


@pytest.mark.parametrize("amount", [7, -7])
def test_a_charge_may_be_a_reward(amount: int) -> None:
    full, low = Ledger(2, 4), Ledger(2, 4)
    full.pay_full(full.new(), amount)
    low.pay_low(low.new(), amount)
    full.add_terms()
    low.add_terms()
    assert (cost(full, False), cost(full, True)) == (0, amount)
    assert (cost(low, False), cost(low, True)) == (amount, 0)


def test_either_is_full_where_one_of_them_is() -> None:
    ledger = Ledger(2, 4)
    one, other = ledger.new(), ledger.new()
    assert ledger.either((one, FULL)) == FULL
    assert ledger.either((one, one)) == one
    both = ledger.either((one, other))
    ledger.pay_full(both, 5)
    ledger.pay_low(one, 9)
    ledger.add_terms()
    assignments = minimum_cut(ledger.variables, ledger.terms.columns())
    assert assignments[one]
    assert assignments[both]
