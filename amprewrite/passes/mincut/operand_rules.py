"""Free promotions inside kernels, bounded by terms that a cut can express.

A promoting op pays for casting up its operands if it is full and all of them are low.
No cut can express ``f = full(op) low(a) low(b)``, but it can express lower bounds::

    f >= share * full(op) * (1 - full(a) - full(b))      for a share from 0 to 1

With a share of 0 it is exact unless the op is full and its operands low, with 1 unless
all three are full. One cast may serve several ops, and uses that pay for it in any
case: its cost is divided among them, and each is charged at most its part. The parts
are moved to where the last solution was charged too little, in decreasing steps: the
method of multipliers. Every division gives a valid lower bound.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from amprewrite.passes.mincut.max_flow import (
    FULL,
    INFINITE,
    LOW,
    Columns,
    Flags,
    Numbers,
)
from amprewrite.passes.mincut.problem import Problem

Fixed = tuple[tuple[int, bool], ...]
"""Variables with a fixed value, and whether it is full."""


@dataclass(frozen=True)
class Seen:
    """Evaluation of a solution on all mixes and on the casts that they share.

    Attributes:
        cost: Cost of the casts that mixes share.
        over: Mixes that are full with more than one full operand.
        wants: Pairs of a mix and a cast where the mix alone wants the cast.
        spare: Pairs where a use wants the cast in any case.
    """

    cost: int
    over: Flags
    wants: Flags
    spare: Flags


class Relaxation:
    """Relaxation of all mixes of a problem, in columns."""

    def __init__(self, problem: Problem) -> None:
        """List operands of mixes, casts of mixes, and other uses of these casts."""
        mixes = problem.groups.mixes
        groups = {id(group): group for mix in mixes for group in mix.groups}
        number = {key: index for index, key in enumerate(groups)}
        shared = list(groups.values())
        operands = [
            (m, variable) for m, mix in enumerate(mixes) for variable in mix.stored
        ]
        pairs = [(m, number[id(g)]) for m, mix in enumerate(mixes) for g in mix.groups]
        uses = [
            (g, variable) for g, group in enumerate(shared) for variable in group.uses
        ]
        self.op = _column(mix.op for mix in mixes)
        self.operand_mix, self.operand = _columns(operands)
        self.pair_mix, self.pair_cast = _columns(pairs)
        self.use_cast, self.use = _columns(uses)
        self.stored = _column(group.stored for group in shared)
        self.cost = _column(group.cost for group in shared)
        self.wanted = _column(group.wanted for group in shared)

    def nothing(self) -> Numbers:
        """Return the division of costs in which no mix is charged."""
        return np.zeros_like(self.pair_mix)

    def terms(self, parts: Numbers, fixed: Fixed) -> tuple[Columns, int]:
        """Return the terms of a lower bound, and the constant to add.

        Args:
            parts: Charge of each mix for each of its casts.
            fixed: Variables with a fixed value.
        """
        free, dead = self._free(fixed)
        left = np.bincount(self.operand_mix[free], minlength=self.op.size)
        own = self._only_operand(free, left)
        sure = ((left == 0)[self.pair_mix] | own) & ~dead[self.pair_mix]
        charged = np.where(sure | dead[self.pair_mix], 0, parts)
        theta = _sum(self.pair_mix, charged, self.op.size)
        surplus = np.maximum(left - 1, 0) * theta
        rest = self.cost - _sum(self.pair_cast, charged, self.cost.size)
        held = free & ~dead[self.operand_mix]
        variables = np.array([variable for variable, _ in fixed], np.int64)
        full = np.array([full for _, full in fixed], np.bool_)
        blocks = (
            (
                self.op[self.operand_mix[held]],
                self.operand[held],
                theta[self.operand_mix[held]],
            ),
            (_like(self.op, FULL), self.op, surplus),
            (self.wanted, self.stored, rest),
            _implied(self.op[self.pair_mix[sure]], self.wanted[self.pair_cast[sure]]),
            _implied(np.where(full, FULL, variables), np.where(full, variables, LOW)),
        )
        full_of, low_of, cost = (
            np.concatenate(part) for part in zip(*blocks, strict=True)
        )
        kept = (cost != 0) & (full_of != low_of) & (full_of != LOW) & (low_of != FULL)
        return (full_of[kept], low_of[kept], cost[kept]), -int(surplus.sum())

    def _free(self, fixed: Fixed) -> tuple[Flags, Flags]:
        """Return which operands are not fixed, and which mixes surely need no cast."""
        operands, mixes = self.operand.size, self.op.size
        if not fixed:
            return np.ones(operands, np.bool_), np.zeros(mixes, np.bool_)
        full = [variable for variable, is_full in fixed if is_full]
        low = [variable for variable, is_full in fixed if not is_full]
        free = ~np.isin(self.operand, full + low)
        wide = self.operand_mix[np.isin(self.operand, full)]
        dead = np.isin(self.op, low) | (np.bincount(wide, minlength=mixes) > 0)
        return free, dead

    def _only_operand(self, free: Flags, left: Numbers) -> Flags:
        """Return the pairs with a value that is the only operand not fixed."""
        last = _like(self.op, -1)
        last[self.operand_mix[free]] = self.operand[free]
        return (left == 1)[self.pair_mix] & (
            last[self.pair_mix] == self.stored[self.pair_cast]
        )

    def look(self, full: Flags) -> Seen:
        """Evaluate a solution on the mixes."""
        wide = np.bincount(self.operand_mix[full[self.operand]], minlength=self.op.size)
        wants = full[self.op] & (wide == 0)
        paid = np.bincount(self.use_cast[full[self.use]], minlength=self.cost.size) > 0
        low = ~full[self.stored]
        asked = paid.copy()
        asked[self.pair_cast[wants[self.pair_mix]]] = True
        alone = wants[self.pair_mix] & (low & ~paid)[self.pair_cast]
        return Seen(
            cost=int(self.cost[low & asked].sum()),
            over=full[self.op] & (wide > 1),
            wants=alone,
            spare=(low & paid)[self.pair_cast],
        )

    def move(self, parts: Numbers, seen: Seen, step: float) -> Numbers:
        """Return a division with charges closer to the true cost of a solution.

        Args:
            parts: The division that led to the solution.
            seen: Evaluation of the solution.
            step: Step size, from 0 to 1.
        """
        wanting = _sum(self.pair_cast, seen.wants.astype(np.int64), self.cost.size)
        target = parts.copy()
        others = (wanting > 0)[self.pair_cast] & ~seen.wants
        target[seen.over[self.pair_mix] | seen.spare | others] = 0
        fair = (self.cost // np.maximum(wanting, 1))[self.pair_cast]
        target[seen.wants] = fair[seen.wants]
        moved = parts + np.rint((target - parts) * step).astype(np.int64)
        total = _sum(self.pair_cast, moved, self.cost.size)
        ratio = (self.cost / np.maximum(total, 1))[self.pair_cast]
        less = np.floor(moved * ratio) - 1  # one less: never more than there is
        fits = (total <= self.cost)[self.pair_cast]
        return np.where(fits, moved, np.maximum(less, 0)).astype(np.int64)

    def widest_gap(self, parts: Numbers, seen: Seen, fixed: Fixed) -> int:
        """Return the mix with the largest gap of bound and cost; -1 if none has."""
        free, dead = self._free(fixed)
        open_ = np.bincount(self.operand_mix[free], minlength=self.op.size) > 0
        off = np.where(seen.wants, self.cost[self.pair_cast] - parts, 0)
        off = np.where(
            seen.over[self.pair_mix] | (seen.spare & ~seen.wants), parts, off
        )
        gaps = np.where(open_ & ~dead, _sum(self.pair_mix, off, self.op.size), -1)
        best = int(gaps.argmax()) if gaps.size else -1
        return best if best >= 0 and gaps[best] > 0 else -1


def _column(numbers: Iterable[int]) -> Numbers:
    return np.fromiter(numbers, np.int64)


def _columns(rows: list[tuple[int, int]]) -> tuple[Numbers, Numbers]:
    table = np.array(rows, np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def _like(column: Numbers, number: int) -> Numbers:
    return np.full(column.size, number, np.int64)


def _sum(index: Numbers, amounts: Numbers, size: int) -> Numbers:
    total = np.zeros(size, np.int64)
    np.add.at(total, index, amounts)
    return total


def _implied(full: NDArray[np.int64], then: NDArray[np.int64]) -> Columns:
    return full, then, _like(full, INFINITE)
