"""An exact minimum cut on integers of any size, by scipy's compiled maximum flow.

A variable is low or full. A term ``pay(full=a, low=b, cost)`` costs something if ``a``
is full and ``b`` low: a cut can express only such terms, and with the two constants
they are all that placement needs but for free promotions (see ``operand_rules``).

scipy's flow has 32-bit capacities. Larger ones are solved in rounds: the flow is found
in multiples of a unit first, then the rest in finer units, down to one, so that the
result is exact. Of several minimum cuts the one nearest the source is returned, with
most variables full: it is unique, so the result is deterministic.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from scipy.sparse import csr_array

LOW, FULL = 0, 1
"""The two constants, source and sink of the flow."""

INFINITE = -1
"""Cost of a forbidden combination."""

LIMIT = 2**29
"""Largest flow and capacity of one round: two of them must add up below 2**31."""

Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass
class Terms:
    """Terms of two variables, in three columns.

    Attributes:
        full: The variables that must be full for a term to cost something.
        low: The variables that must be low.
        cost: Cost of the term, a whole number, or :data:`INFINITE`.
    """

    full: list[int] = field(default_factory=list[int])
    low: list[int] = field(default_factory=list[int])
    cost: list[int] = field(default_factory=list[int])

    def pay(self, full: int, low: int, cost: int) -> None:
        """Charge ``cost`` where variable ``full`` is full and ``low`` is low."""
        if cost and full not in (low, LOW) and low != FULL:
            self.full.append(full)
            self.low.append(low)
            self.cost.append(cost)

    def imply(self, full: int, then: int) -> None:
        """Forbid that variable ``full`` is full and ``then`` is low."""
        self.pay(full, then, INFINITE)

    def columns(self) -> tuple[Numbers, Numbers, Numbers]:
        """Return the three columns as arrays."""
        return (
            np.array(self.full, np.int64),
            np.array(self.low, np.int64),
            np.array(self.cost, np.int64),
        )


Columns = tuple[Numbers, Numbers, Numbers]


def price(columns: Columns, variables: Flags) -> int:
    """Return the cost of ``variables`` (true: full), without forbidding terms."""
    full, low, cost = columns
    paid = cost[variables[full] & ~variables[low]]
    return int(paid[paid > 0].sum())


def minimum_cut(variables: int, columns: Columns) -> Flags:
    """Return for each variable whether it is full in the cheapest assignment.

    Args:
        variables: Their number, the two constants included.
        columns: The terms.
    """
    full, low, cost = columns
    finite = cost[cost > 0]
    divisor = max(1, int(np.gcd.reduce(finite))) if finite.size else 1
    infinite = int(finite.sum()) // divisor + 1
    capacity = np.where(cost == INFINITE, infinite, cost // divisor)
    residual = _Residual(variables, low, full, capacity)  # cut: from low to full
    residual.saturate(infinite)
    return residual.full_side()


class _Residual:
    """Residual network with both directions of every edge."""

    def __init__(self, size: int, tail: Numbers, head: Numbers, cap: Numbers) -> None:
        keys = np.concatenate((tail * size + head, head * size + tail))
        left = np.concatenate((cap, np.zeros_like(cap)))
        order = np.argsort(keys, kind="stable")
        keys, left = keys[order], left[order]
        first = np.flatnonzero(np.diff(keys, prepend=-1))
        self.size, self.keys = size, keys[first]
        self.left = np.add.reduceat(left, first) if left.size else left
        rows, self.columns = np.divmod(self.keys, size)
        self.starts = np.concatenate(([0], np.bincount(rows, minlength=size).cumsum()))

    def _graph(self, data: NDArray[np.int32]) -> "csr_array":
        from scipy.sparse import csr_array  # noqa: PLC0415  # slow to load

        columns, starts = self.columns.astype(np.int32), self.starts.astype(np.int32)
        return csr_array((data, columns, starts), shape=(self.size, self.size))

    def saturate(self, total: int) -> None:
        """Push a maximum flow; ``total`` is more than the flow can be."""
        from scipy.sparse.csgraph import maximum_flow  # noqa: PLC0415  # slow too

        unit = -(-total // LIMIT)
        while True:
            capacity = np.minimum(self.left // unit, LIMIT).astype(np.int32)
            result = maximum_flow(self._graph(capacity), LOW, FULL)
            self.left -= result.flow.data.astype(np.int64) * unit
            capped = bool((capacity == LIMIT).any()) and result.flow_value > 0
            if unit == 1 and not capped:
                return
            rest = self.keys.size * unit  # less than a unit was left on each edge
            unit = unit if capped else min(unit - 1, -(-rest // LIMIT))

    def full_side(self) -> Flags:
        """Return the vertices that the source does not reach any more."""
        from scipy.sparse.csgraph import breadth_first_order  # noqa: PLC0415  # too

        left = (self.left > 0).astype(np.int32)
        graph = self._graph(left)
        graph.eliminate_zeros()
        reached = breadth_first_order(graph, LOW, return_predecessors=False)
        variables = np.ones(self.size, np.bool_)
        variables[reached] = False
        return variables
