"""Solve choices between low and full at the least cost, as an integer program.

A *choice* is a binary variable, 1 for full and 0 for low; :data:`LOW` and :data:`FULL`
are the two constants. The program minimises bytes::

    sum(cost * x) + sum(cost * y)

    x[a] <= x[b]                          ``imply(a, b)``
    x[a] - x[b] - x[c] - ... <= y         each case of ``pay_any(cases, cost)``
    sum(error * z) <= bound               each limit on errors

1. A *case* ``(a, (b, c))`` holds where ``a`` is full and all of the others are low. A
   payment is due once if any of its cases holds: a value that is stored full and read
   low by several ops is cast once, and an op whose kernel promotes pays for its casts
   if it is full and all its operands are low. ``y`` is continuous, because ``x`` is
   binary. An error is a payment of error in place of bytes, and ``z`` its variable.
2. The relaxation is solved first, with ``x`` between 0 and 1. Where each case has one
   low choice, and no limit binds, it is a minimum cut, which has integral vertices, so
   that its solution is the answer. Otherwise the solution is rounded at a few
   thresholds: one that costs no more than the bound of the relaxation and the gap is
   the answer.
3. Else HiGHS branches and cuts (``scipy.optimize.milp``), up to a number of nodes and
   not to a time, so that a result does not depend on the machine.
4. The choices are rounded, and their cost, errors and ties are computed again in
   integers and exact sums. HiGHS keeps rows within an absolute 1e-6, so that each limit
   is scaled to a right side of 1, and a solution beyond it is refused: the row is made
   stricter, and the program is solved again.
5. The bound of the solver is rounded down by more than its tolerances, then up to the
   next multiple of the greatest common divisor of all costs: for most programs that is
   the cost of the solution itself. A bound is never overstated.

**Ties.** Costs are divided by their greatest common divisor, and all low choices
together cost less than half of it. Of the cheapest solutions, one with most full
choices is taken. For a minimum cut that one is unique.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, fsum, gcd, inf, isfinite

import numpy as np
from numpy.typing import NDArray

from amprewrite.plan.sensitivity import Key, Limit
from amprewrite.runtime.collector import collector_paused

LOW, FULL = 0, 1
"""The two constants, as choices."""

NODES = 2000
"""Limit on the nodes of one search."""

SLACKS = (0.0, 4e-6, 1e-5, 1e-4)
"""Shares by which limits are made stricter, one after the other.

HiGHS keeps a row within 1e-6, and integers within 1e-6 each.
"""

NEGLIGIBLE = 1e-9
"""Share of a limit below which HiGHS takes an error as zero; sums count it."""

RESOLUTION = 10**9
"""Units of the largest error in which the least errors are found."""

AIM = 0.1
"""Share of the gap at which a search ends; at its limit of nodes, the gap is enough.

It costs little more time, and of two plans within a gap users notice the dearer one.
"""

INTEGRAL = 1e-6
"""Distance from a whole number that HiGHS allows."""

TIE = 0.5
"""Units of cost that all low choices together cost more than full ones."""

THRESHOLDS = (0.01, 0.25, 0.5, 0.75, 0.99)
"""Values of the relaxation from which a choice is rounded to full."""

Case = tuple[int, tuple[int, ...]]
"""A choice that is full, and the choices that are all low."""

Flags = NDArray[np.bool_]
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Solution:
    """The best choices that were found, and a lower bound on the cost of all.

    Attributes:
        full: For each choice whether it is full.
        cost: Cost of the choices.
        bound: No choices within the limits cost less.
        nodes: Nodes of the search; 0 if the relaxation was enough.
        stopped: Whether the search ended at its limit of nodes, above the gap.
    """

    full: Flags
    cost: int
    bound: int
    nodes: int = 0
    stopped: bool = False


@dataclass
class IntegerProgram:
    """Costs of choices between low and full, in whole numbers.

    Attributes:
        constant: Cost common to all choices.
        costs: For each choice the extra cost of full over low.
        payments: Cost of each payment, by its cases.
        implications: Pairs of a choice and one that is full if the first is.
        errors: Pairs of the key of a rounding and the case in which it happens.
    """

    constant: int = 0
    costs: list[int] = field(default_factory=lambda: [0, 0])
    payments: dict[tuple[Case, ...], int] = field(
        default_factory=dict[tuple[Case, ...], int]
    )
    implications: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    errors: list[tuple[Key, Case]] = field(default_factory=list[tuple[Key, Case]])

    def new(self) -> int:
        """Return a new choice."""
        self.costs.append(0)
        return len(self.costs) - 1

    def either(self, choices: Iterable[int]) -> int:
        """Return a choice that is full if one of ``choices`` is."""
        distinct = set(choices)
        if FULL in distinct or len(distinct) == 1:
            return FULL if FULL in distinct else distinct.pop()
        joint = self.new()
        for choice in sorted(distinct):
            self.imply(choice, joint)
        return joint

    def imply(self, full: int, then: int) -> None:
        """Forbid that choice ``full`` is full and ``then`` is low."""
        if full not in (then, LOW) and then != FULL:
            self.implications.append((full, then))

    def pay_full(self, choice: int, cost: int) -> None:
        """Charge ``cost`` where a choice is full; a negative one is a reward."""
        self.costs[choice] += cost

    def pay_low(self, choice: int, cost: int) -> None:
        """Charge ``cost`` where a choice is low; a negative one is a reward."""
        self.costs[choice] -= cost
        self.constant += cost

    def pay(self, full: int, low: int, cost: int) -> None:
        """Charge ``cost`` where one choice is full and another one low."""
        self.pay_any([(full, (low,))], cost)

    def pay_any(self, cases: Iterable[Case], cost: int) -> None:
        """Charge ``cost``, 0 or more, once if any of ``cases`` holds."""
        due = tuple(sorted({case for case in cases if _may_hold(case)}))
        if not due or not cost:
            return
        (full, low), *others = due
        if not others and low == (LOW,):
            self.pay_full(full, cost)
        elif not others and full == FULL and len(low) == 1:
            self.pay_low(low[0], cost)
        else:
            self.payments[due] = self.payments.get(due, 0) + cost

    def count_error(self, key: Key, full: int, low: int) -> None:
        """Count the rounding ``key`` where one choice is full and another one low."""
        if _may_hold((full, (low,))):
            self.errors.append((key, (full, (low,))))

    def cost(self, full: Flags) -> int:
        """Return the cost of choices (true: full)."""
        flags: list[bool] = full.tolist()
        own = sum(cost for cost, flag in zip(self.costs, flags, strict=True) if flag)
        due = (
            cost
            for cases, cost in self.payments.items()
            if any(_holds(case, flags) for case in cases)
        )
        return self.constant + own + sum(due)

    def roundings(self, full: Flags) -> Iterator[Key]:
        """Yield the keys of the roundings that choices make."""
        flags: list[bool] = full.tolist()
        yield from (key for key, case in self.errors if _holds(case, flags))

    def keeps(self, full: Flags, limits: Iterable[Limit] = ()) -> bool:
        """Return whether choices keep all implications, and errors their limits."""
        flags: list[bool] = full.tolist()
        if flags[LOW] or not flags[FULL]:
            return False
        if any(flags[a] and not flags[b] for a, b in self.implications):
            return False
        return all(self.error(full, limit) <= limit.bound for limit in limits)

    def error(self, full: Flags, limit: Limit) -> float:
        """Return the sum of the errors that choices make, as a limit counts them."""
        return fsum(limit.errors.get(key, 0.0) for key in self.roundings(full))


def _may_hold(case: Case) -> bool:
    full, low = case
    return full != LOW and full not in low and FULL not in low


def _holds(case: Case, flags: Sequence[bool]) -> bool:
    full, low = case
    return flags[full] and not any(flags[choice] for choice in low)


@collector_paused()
def solve(
    program: IntegerProgram,
    limits: Sequence[Limit] = (),
    *,
    gap: float = 0.0,
    nodes: int | None = None,
) -> Solution | None:
    """Return the cheapest choices within the limits; None if there are none.

    Args:
        program: The costs.
        limits: Limits on errors.
        gap: Relative gap between cost and bound at which the search may end.
        nodes: Limit on the nodes of the search; None for :data:`NODES`.

    Raises:
        RuntimeError: The solver failed, or its solutions break a tie or a limit.
    """
    first: Solution | None = None
    for slack in SLACKS if limits else SLACKS[:1]:
        solution = _Rows(program, limits, slack).solve(gap, nodes or NODES)
        if solution is None:
            break
        first = first or solution  # stricter limits would overstate the bound
        if program.keeps(solution.full, limits):
            return replace(solution, bound=min(first.bound, solution.cost))
    if first is None:
        return None
    full = least_error(program, limits)  # the only one, where a limit is just kept
    if program.keeps(full, limits):
        cost = program.cost(full)
        return replace(first, full=full, cost=cost, bound=min(first.bound, cost))
    msg = (
        f"HiGHS solved an integer program of {len(program.costs)} choices, and its "
        f"solution breaks a tie or a limit; want one that keeps them; please report "
        f"the program and the tolerance"
    )
    raise RuntimeError(msg)


def least_error(program: IntegerProgram, limits: Sequence[Limit]) -> Flags:
    """Return choices of which the errors, added up over all limits, are the least.

    Raises:
        RuntimeError: The solver failed.
    """
    errors = {
        key: fsum(limit.errors.get(key, 0.0) for limit in limits)
        for key, _ in program.errors
    }
    largest = max(filter(isfinite, errors.values()), default=0.0) or 1.0
    least = IntegerProgram(
        costs=[0] * len(program.costs), implications=program.implications
    )
    for key, case in program.errors:
        error = min(errors[key] / largest, len(errors) + 1.0)
        least.pay_any([case], round(error * RESOLUTION))
    solution = solve(least)
    assert solution is not None  # without limits all choices may be full
    return solution.full


@dataclass(frozen=True)
class _Result:
    """A result of HiGHS.

    Attributes:
        values: Value of each choice; None if there is no solution yet.
        objective: Value of the objective.
        bound: Lower bound on the objective, minus infinity if unknown.
        nodes: Nodes of the search.
        stopped: Whether it reached its limit of nodes.
    """

    values: Numbers | None
    objective: float
    bound: float
    nodes: int
    stopped: bool


class _Rows:
    """The rows and columns of a program, as HiGHS takes them.

    A column for each choice is followed by one for each payment, and by one for each
    case of an error that is no payment.
    """

    def __init__(
        self, program: IntegerProgram, limits: Sequence[Limit], slack: float
    ) -> None:
        self.program, self.limits, self.size = program, limits, len(program.costs)
        self.unit = gcd(*program.costs[2:], *program.payments.values()) or 1
        self.base = program.constant + program.costs[FULL]
        self.columns = {case: n for n, case in enumerate(program.payments, self.size)}
        self.feasible = True
        self.entries: list[tuple[int, int, float]] = []  # row, column, coefficient
        self.ends: list[float] = []  # largest value of each row
        for full, then in program.implications:
            self._add([(full, 1.0), (then, -1.0)], 0.0)
        for limit in limits:
            self._limit(limit, slack)
        for cases, column in self.columns.items():
            for full, low in cases:
                above = [(full, 1.0), (column, -1.0)]
                self._add([*above, *((choice, -1.0) for choice in low)], 0.0)

    def _add(self, terms: Iterable[tuple[int, float]], end: float) -> None:
        row = len(self.ends)
        self.entries.extend((row, column, factor) for column, factor in terms)
        self.ends.append(end)

    def _limit(self, limit: Limit, slack: float) -> None:
        """Add the row of a limit, and forbid what exceeds it alone.

        The row says by how much less than the room that unavoidable errors leave.
        """
        sizes: dict[Case, list[float]] = {}
        for key, case in self.program.errors:
            if error := limit.errors.get(key, 0.0):
                sizes.setdefault(case, []).append(error)
        always = fsum(sizes.pop((FULL, (LOW,)), ()))
        if always > limit.bound:
            self.feasible = False
            return
        room = limit.bound - always if isfinite(limit.bound) else inf
        row: dict[int, float] = {}
        end = 1.0 - slack
        for case, errors in sizes.items():
            (full, (low,)), error = case, fsum(errors)
            if error > room or not isfinite(error):
                self._add([(full, 1.0), (low, -1.0)], 0.0)
            elif (share := error / room) < NEGLIGIBLE:
                continue
            elif full == FULL:
                row[low] = row.get(low, 0.0) - share
                end -= share
            elif low == LOW:
                row[full] = row.get(full, 0.0) + share
            else:
                column = self.columns.setdefault((case,), self.size + len(self.columns))
                row[column] = row.get(column, 0.0) + share
        self._add(row.items(), end)

    def solve(self, gap: float, nodes: int) -> Solution | None:
        """Return the best choices that the solver reaches; None if there are none."""
        relaxed = self._highs() if self.feasible else None
        if relaxed is None:
            return None
        assert relaxed.values is not None
        bound, values = self._certified(relaxed.objective), relaxed.values
        if np.abs(values - np.rint(values)).max() < INTEGRAL:
            return self._solution(values, 0.5, bound)
        rounded = [self._solution(values, least, bound) for least in THRESHOLDS]
        rounded = [s for s in rounded if self.program.keeps(s.full, self.limits)]
        best = min(rounded, key=lambda solution: solution.cost, default=None)
        if best is not None and best.cost - bound <= AIM * gap * abs(best.cost):
            return best
        total = abs(self.base / self.unit + relaxed.objective)
        share = AIM * gap * total / max(abs(relaxed.objective), 1.0)
        searched = self._highs(share, nodes)
        if searched is None:
            return best
        if isfinite(searched.bound):
            bound = max(bound, self._certified(searched.bound))
        if searched.values is not None:
            rounded.append(self._solution(searched.values, 0.5, bound))
        elif best is None:
            full = least_error(self.program, self.limits)
            if not self.program.keeps(full, self.limits):
                return None
            rounded.append(Solution(full, self.program.cost(full), bound))
        best = min(rounded, key=lambda solution: solution.cost)
        stopped = searched.stopped and best.cost - bound > gap * abs(best.cost)
        return replace(best, bound=bound, nodes=searched.nodes, stopped=stopped)

    def _solution(self, values: Numbers, least: float, bound: int) -> Solution:
        """Return the choices of which the values are above ``least``."""
        full = values > least
        return Solution(full, self.program.cost(full), bound)

    def _certified(self, value: float) -> int:
        """Return a cost that no solution undercuts, from a bound on the objective.

        The objective is at most the cost in units. HiGHS keeps duals within 1e-7, and
        adds floats.
        """
        error = 1e-3 + 1e-7 * self.size + 1e-11 * abs(value)
        return self.base + self.unit * ceil(value - error)

    def _highs(self, gap: float = 0.0, nodes: int = 0) -> _Result | None:
        """Return the result of HiGHS; None for a program without solutions.

        Args:
            gap: Relative gap of the objective at which the search may end.
            nodes: Limit on the nodes of the search; 0 for the relaxation alone.

        Raises:
            RuntimeError: It fails for another reason.
        """
        from scipy.optimize import Bounds, LinearConstraint, milp  # noqa: PLC0415  # slow
        from scipy.sparse import csr_array  # noqa: PLC0415  # slow to load

        count = self.size + len(self.columns)
        costs = np.zeros(count)
        costs[: self.size] = [cost / self.unit for cost in self.program.costs]
        costs[: self.size] -= TIE / self.size
        costs[[LOW, FULL]] = 0.0
        for cases, cost in self.program.payments.items():
            costs[self.columns[cases]] = cost / self.unit
        least, most = np.zeros(count), np.ones(count)
        least[FULL], most[LOW] = 1.0, 0.0
        table = np.array(self.entries, np.float64).reshape(-1, 3)
        places = table[:, 0].astype(np.int32), table[:, 1].astype(np.int32)
        shape = len(self.ends), count
        matrix = csr_array((table[:, 2], places), shape=shape)
        integral = np.arange(count) < (self.size if nodes else 0)
        result = milp(
            costs,
            integrality=integral.astype(np.int64),
            bounds=Bounds(least, most),
            constraints=LinearConstraint(matrix, -np.inf, self.ends),
            options={"mip_rel_gap": gap, "node_limit": nodes} if nodes else {},
        )
        # scipy has a status of its own neither for the limit of nodes, nor for what is
        # found infeasible before the search (it might be unbounded, but costs are not).
        stopped = "limit reached" in result.message
        if "infeasible" in result.message:
            return None
        if not (stopped or result.success):
            msg = f"HiGHS did not solve an integer program: {result.message}"
            raise RuntimeError(msg)
        return _Result(
            None if result.x is None else result.x[: self.size],
            result.fun or 0.0,
            -inf if result.mip_dual_bound is None else result.mip_dual_bound,
            result.mip_node_count or 0,
            stopped=stopped,
        )
