"""The cheapest placement with its certificate: branch and bound on minimum cuts.

Without free promotions one minimum cut is the answer. With them, cuts are lower bounds
on the cost, and each solution has a true cost; where both meet, it is optimal, and the
bound is its certificate. Where they do not, the search branches on one op: it is low;
or full with its first operand full; or with the second; or with none. A branch with a
bound no better than the best solution is pruned. If the limit of work is reached, the
open branches make the certificate smaller than the cost: it is never overstated.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np

from amprewrite.passes.mincut.max_flow import (
    FULL,
    Columns,
    Flags,
    Numbers,
    minimum_cut,
    price,
)
from amprewrite.passes.mincut.operand_rules import Fixed, Relaxation
from amprewrite.passes.mincut.problem import Problem
from amprewrite.runtime.collector import collector_paused

STEPS = (1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.125, 0.125)
"""Step sizes for the charges of mixes after each cut of one branch."""

WORK = 400_000
"""Limit on variables in all cuts of a search; about a second for any program."""

LEAST_CUTS = 3
"""Least number of cuts for a program of any size, unless the first suffices."""

IMPOSSIBLE = 2**62
"""Bound of an infeasible branch."""


@dataclass
class Solution:
    """The best placement found, and a lower bound on the cost of all.

    Attributes:
        full: For each variable whether it is full.
        cost: Cost of the placement.
        bound: No placement costs less; equal to ``cost`` where the search ended.
        cuts: Cuts that were solved.
    """

    full: Flags
    cost: int
    bound: int
    cuts: int


@collector_paused()
def solve(problem: Problem, most_cuts: int | None = None) -> Solution:
    """Return the cheapest placement of a problem, with its certificate.

    Args:
        problem: The problem.
        most_cuts: Limit on the number of cuts; None for the limit of ``WORK``.
    """
    if most_cuts is None:
        most_cuts = max(LEAST_CUTS, WORK // problem.variables)
    return _Search(problem, most_cuts).run()


@dataclass(order=True)
class _Part:
    """A branch of the search: fixed variables, and the charges of mixes."""

    bound: int
    number: int
    fixed: Fixed = field(compare=False)
    charges: Numbers = field(compare=False)
    split: int = field(default=-1, compare=False)


class _Search:
    def __init__(self, problem: Problem, most_cuts: int) -> None:
        self.problem = problem
        self.base = problem.terms.columns()
        self.relaxation = Relaxation(problem)
        self.best: Solution | None = None
        self.cuts, self.limit = 0, most_cuts

    def run(self) -> Solution:
        parts = [self._bound(_Part(0, 0, (), self.relaxation.nothing()))]
        assert self.best is not None
        number = 0
        while self.cuts < self.limit and self._is_open(parts):
            part = heappop(parts)
            for fixed in self._split(part):
                number += 1
                child = _Part(part.bound, number, fixed, part.charges)
                solved = self._bound(child)
                if solved.bound < self.best.cost:
                    heappush(parts, solved)
        self.best.bound = min([self.best.cost, *(part.bound for part in parts[:1])])
        self.best.cuts = self.cuts
        return self.best

    def _is_open(self, parts: list[_Part]) -> bool:
        """Return whether some branch may hold a cheaper placement, and can be split."""
        assert self.best is not None
        return bool(parts) and parts[0].bound < self.best.cost and parts[0].split >= 0

    def _split(self, part: _Part) -> Iterator[Fixed]:
        """Yield the fixed variables of each branch of ``part``; they cover it."""
        mix, fixed = self.problem.groups.mixes[part.split], part.fixed
        known = {FULL, *(variable for variable, _ in fixed)}
        if mix.op not in known:
            yield (*fixed, (mix.op, False))
            fixed = (*fixed, (mix.op, True))
        for variable in mix.stored:
            if variable not in known:
                yield (*fixed, (variable, True))
                fixed = (*fixed, (variable, False))
        yield fixed

    def _bound(self, part: _Part) -> _Part:
        """Bound a branch by cuts, with charges moved to where they were too small."""
        charges, fixed, bound, split = part.charges, part.fixed, part.bound, part.split
        kept = charges
        for step in STEPS:
            more, constant = self.relaxation.terms(charges, fixed)
            pairs = zip(self.base, more, strict=True)
            first, second, third = (np.concatenate(pair) for pair in pairs)
            columns = (first, second, third)
            full = minimum_cut(self.problem.variables, columns)
            self.cuts += 1
            if _is_broken(columns, full):
                return _Part(IMPOSSIBLE, part.number, fixed, charges)
            seen = self.relaxation.look(full)
            found = price(columns, full) + constant + self.problem.constant
            cost = price(self.base, full) + seen.cost + self.problem.constant
            if self.best is None or cost < self.best.cost:
                self.best = Solution(full, cost, 0, 0)
            if found > bound or split < 0:
                bound, kept = max(bound, found), charges
                split = self.relaxation.widest_gap(charges, seen, fixed)
            if bound >= self.best.cost or self.cuts >= self.limit:
                break
            moved = self.relaxation.move(charges, seen, step)
            if (moved == charges).all():
                break
            charges = moved
        return _Part(bound, part.number, fixed, kept, split)


def _is_broken(columns: Columns, full: Flags) -> bool:
    """Return whether the fixed variables contradict each other."""
    of_full, of_low, cost = columns
    return bool(((cost < 0) & full[of_full] & ~full[of_low]).any())
