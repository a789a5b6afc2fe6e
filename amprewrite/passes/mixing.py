"""The cheapest placement where kernels promote for free: cuts, and a search around them.

``f = full(op) and low(a) and low(b)`` is when a promoting op pays for casting up its
operands. No cut holds it, but two lower bounds of it are terms of a cut::

    f >= 0                                  exact unless the op is full, a and b low
    f >= full(op) (1 - full(a) - full(b))   exact unless the op, a and b are full

Each op uses the bound that is exact in the last solution, and the cut is solved again
until all are: then it is the optimum, and its value is the certificate. Where that does
not settle, the search splits on one op: it is low; or full with its first operand full;
or with the second; or with none. A part whose bound is no better than what was found
is dropped; what is left when the limit is reached makes the certificate smaller.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np

from amprewrite.passes.groups import Group, Mix
from amprewrite.passes.network import (
    FULL,
    LOW,
    Columns,
    Flags,
    Terms,
    minimum_cut,
    price,
)
from amprewrite.passes.terms import Problem

ROUNDS = 8
"""Cuts solved for one part of the search; on random graphs 99 in 100 take four."""

WORK = 4_000_000
"""Variables in all cuts after the first; a search takes a few seconds then."""

IMPOSSIBLE = 2**62
"""Bound of a part in which nothing is allowed."""

Fixed = tuple[tuple[int, bool], ...]
"""Variables whose side a part of the search fixes."""


@dataclass
class Solution:
    """The best placement found, and what none can be cheaper than.

    Attributes:
        full: For each variable whether it is full.
        cost: What that costs.
        bound: No placement costs less; equal to ``cost`` where the search ended.
        cuts: Cuts that were solved.
    """

    full: Flags
    cost: int
    bound: int
    cuts: int


def solve(problem: Problem) -> Solution:
    """Return the cheapest placement of a problem, with its certificate."""
    return _Search(problem).run()


@dataclass(order=True)
class _Part:
    """A part of the search: what is fixed, and which ops use the second bound."""

    bound: int
    number: int
    fixed: Fixed = field(compare=False)
    charged: frozenset[int] = field(compare=False)
    split: int = field(default=-1, compare=False)


class _Search:
    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.base = problem.terms.columns()
        self.mixes = problem.groups.mixes
        found = {id(g): g for mix in self.mixes for g in mix.groups}
        self.shared: list[Group] = list(found.values())
        self.best: Flags | None = None
        self.cost = 0
        self.cuts = 0

    def run(self) -> Solution:
        parts = [self._solve(_Part(0, 0, (), frozenset()))]
        limit, number = self._limit(), 0
        while parts[0].bound < self.cost and self.cuts < limit:
            part = heappop(parts)
            for fixed in self._split(part):
                number += 1
                child = _Part(part.bound, number, fixed, part.charged)
                solved = self._solve(child)
                if solved.bound < self.cost:
                    heappush(parts, solved)
            if not parts:
                break
        bound = min([self.cost, *(part.bound for part in parts[:1])])
        assert self.best is not None
        return Solution(self.best, self.cost, bound, self.cuts)

    def _limit(self) -> int:
        return 1 + WORK // max(self.problem.variables, 200)

    def _split(self, part: _Part) -> Iterator[Fixed]:
        """Yield what to fix in each part of ``part``; together they cover it."""
        mix, fixed = self.mixes[part.split], part.fixed
        known = {FULL, *(side for side, _ in fixed)}
        if mix.op not in known:
            yield (*fixed, (mix.op, False))
            fixed = (*fixed, (mix.op, True))
        for side in mix.stored:
            if side not in known:
                yield (*fixed, (side, True))
                fixed = (*fixed, (side, False))
        yield fixed

    def _solve(self, part: _Part) -> _Part:
        """Bound a part by cuts, each with what is exact in the solution before."""
        charged, fixed, split = part.charged, dict(part.fixed), -1
        bound, seen = part.bound, set[frozenset[int]]()
        while charged not in seen and len(seen) < ROUNDS:
            seen.add(charged)
            columns, constant = self._relax(charged, fixed)
            full = minimum_cut(self.problem.variables, columns)
            self.cuts += 1
            if _is_broken(columns, full):
                return _Part(IMPOSSIBLE, part.number, part.fixed, charged)
            sides = full.tolist()
            bound = max(bound, price(columns, full) + constant)
            cost = price(self.base, full) + self._casts(sides)
            if self.best is None or cost < self.cost:
                self.best, self.cost = full, cost
            if bound >= self.cost:
                break
            wrong, split = self._wrong(sides, charged, fixed)
            charged = charged.symmetric_difference(wrong)
        return _Part(bound, part.number, part.fixed, charged, split)

    def _relax(
        self, charged: frozenset[int], fixed: dict[int, bool]
    ) -> tuple[Columns, int]:
        """Return terms whose cut is a lower bound, and what to add to it."""
        terms, constant = Terms(), self.problem.constant
        left = {id(group): group.cost for group in self.shared}
        for number, mix in enumerate(self.mixes):
            free = _free(mix, fixed)
            if free is None:
                continue
            theta = 0
            for group in mix.groups:
                if free in ([], [group.stored]):
                    terms.imply(mix.op, group.wanted)
                elif number in charged or len(free) == 1:
                    share = _share(group)
                    left[id(group)] -= share
                    theta += share
            for side in free:
                terms.pay(mix.op, side, theta)
            surplus = max(0, len(free) - 1) * theta
            terms.pay(FULL, mix.op, surplus)
            constant -= surplus
        for group in self.shared:
            terms.pay(group.wanted, group.stored, left[id(group)])
        for side, full in fixed.items():
            terms.imply(FULL if full else side, side if full else LOW)
        pairs = zip(self.base, terms.columns(), strict=True)
        full, low, cost = (np.concatenate(pair) for pair in pairs)
        return (full, low, cost), constant

    def _wrong(
        self, sides: list[bool], charged: frozenset[int], fixed: dict[int, bool]
    ) -> tuple[set[int], int]:
        """Return the mixes whose other bound is exact in a solution, and one to split.

        Args:
            sides: For each variable whether it is full.
            charged: The mixes that use the second bound.
            fixed: The variables that the part fixes.
        """
        wrong, split = set[int](), -1
        for number, mix in enumerate(self.mixes):
            free = _free(mix, fixed)
            if not sides[mix.op] or not free:
                continue
            wide = sum(sides[side] for side in mix.stored)
            other = wide > 1 if number in charged else wide == 0
            if other and len(free) > 1:
                wrong.add(number)
            if split < 0 and (other or wide == 0):
                split = number
        return wrong, split

    def _casts(self, sides: list[bool]) -> int:
        """Return what the casts cost that mixes share, and the constant."""
        cost, wanted = self.problem.constant, set[int]()
        for mix in self.mixes:
            if sides[mix.op] and not any(sides[side] for side in mix.stored):
                wanted.update(id(group) for group in mix.groups)
        for group in self.shared:
            up = id(group) in wanted or any(sides[use] for use in group.uses)
            if up and not sides[group.stored]:
                cost += group.cost
        return cost


def _free(mix: Mix, fixed: dict[int, bool]) -> list[int] | None:
    """Return the operands that are not fixed; None if no cast can be wanted."""
    if not fixed:
        return list(mix.stored)
    if fixed.get(mix.op) is False or any(fixed.get(side) for side in mix.stored):
        return None
    return [side for side in mix.stored if side not in fixed]


def _share(group: Group) -> int:
    """Return how much of a cast one of its mixes may be charged: what no use pays."""
    return 0 if group.uses else group.cost // len(group.mixes)


def _is_broken(columns: Columns, full: Flags) -> bool:
    """Whether what is fixed contradicts itself."""
    of_full, of_low, cost = columns
    return bool(((cost < 0) & full[of_full] & ~full[of_low]).any())
