"""The cheapest plan whose error stays within a tolerance.

Errors are given a price in bytes, and the price is raised until the plan of least cost
has a predicted error within the tolerance. What is measured then is in
:mod:`amprewrite.passes.error_budget.measured_search`.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import exp, floor, inf, isfinite, log
from typing import Any, TypeAlias, cast

from amprewrite.errors import ToleranceError, UnsupportedError
from amprewrite.ir import ProgramGraph
from amprewrite.passes.cost.cost import Objective
from amprewrite.passes.cost.cost_model import CostModel
from amprewrite.passes.error_budget.overflow import explained
from amprewrite.passes.error_budget.probe_selection import ceiling
from amprewrite.plan import NOTHING_LOWERED, Plan
from amprewrite.plan.sensitivity import Key, Measurements, Sensitivity

AUTOCAST = "autocast"
"""The tolerance that is the error of torch.autocast on the same arguments."""

Tolerance: TypeAlias = float | str | Mapping[str, float]
"""A bound on the relative L2 error of all float outputs together, or of each by path,
or ``"autocast"``."""

UNMEASURED = 0.85
"""Share of the tolerance that a prediction may take which cannot be measured:
first-order predictions and measurements agreed within 15 % on models with random
weights, where tried."""

MEASURED = 0.95
"""Share of a number that a measurement may take: other inputs differ. Their error
was that of the measured ones within a few percent on all models tried."""

SOLVES = 14
"""Halvings of the range of prices, about 30 decades: to within half a percent."""


def placement_for(placement: str | None, tolerance: object) -> str:
    """Return ``placement``, or the default one: ``optimal`` where there is a tolerance.

    Without a tolerance it is ``promote``.
    """
    if placement is not None:
        return placement
    return "promote" if tolerance is None else "optimal"


def check_tolerance(tolerance: object, placement: str) -> None:
    """Make sure that ``tolerance`` is one, and that ``placement`` takes it.

    Raises:
        ToleranceError: It is no tolerance.
        UnsupportedError: The placement takes none.
    """
    if placement != "optimal":
        msg = (
            f"placement {placement!r} takes no tolerance, only 'optimal' does; leave "
            f"placement out, which is then 'optimal', or leave tolerance=None"
        )
        raise UnsupportedError(msg)
    if isinstance(tolerance, Mapping):
        bounds = cast("Mapping[Any, Any]", tolerance)
        if not bounds:
            msg = "tolerance={} bounds no output; name one, or pass one number for all"
            raise ToleranceError(msg)
        for path, number in bounds.items():
            _check_number(number, f"tolerance[{path!r}]")
    elif tolerance != AUTOCAST:
        _check_number(tolerance, "tolerance")


def _check_number(number: object, where: str) -> None:
    known = isinstance(number, (int, float)) and not isinstance(number, bool)
    if not (known and 0.0 < cast("float", number) < inf):
        msg = (
            f"{where} is {number!r}; want a relative error above 0 such as 1e-3, "
            f"{AUTOCAST!r}, or a table of output paths with numbers"
        )
        raise ToleranceError(msg)


@dataclass(frozen=True)
class Goal:
    """What a plan is looked for by.

    Attributes:
        measured: The program, the error of each rounding, and the largest of all.
        plan_for: Gives the plan of least cost under given errors.
        model: Prices of the target.
        share: Share of the target that a measured error may take.
        others: Plans of other placements, which the one found is not to lose to.
    """

    measured: Measurements
    plan_for: Callable[[Objective], Plan]
    model: CostModel
    share: float = MEASURED
    others: Callable[[], Iterable[Plan]] = tuple

    @property
    def graph(self) -> ProgramGraph:
        """The program."""
        return self.measured.graph

    @property
    def sensitivity(self) -> Sensitivity:
        """The error of each rounding."""
        return self.measured.sensitivity

    @property
    def target(self) -> float:
        """Largest relative L2 error of the outputs."""
        return self.measured.target


@dataclass(frozen=True)
class Price:
    """What errors cost.

    Attributes:
        multiplier: Bytes for a mean squared relative error of 1.
        kept: Ops whose roundings are too dear to be made.
    """

    multiplier: float
    kept: frozenset[str] = frozenset()


class Search:
    """Looks for plans by what their errors cost; solved prices are kept."""

    def __init__(self, goal: Goal, *, strict: bool = False) -> None:
        """Find the range of prices between which the cheapest plan changes.

        Args:
            goal: What is looked for.
            strict: Whether to keep full what has no error to first order: what is
                only compared, and what no bounded output depends on.
        """
        self.goal, self.strict = goal, strict
        self.pin = ceiling(goal.graph, goal.model)
        self.plans: dict[Price, Plan] = {}
        self.bounds: dict[float, int] = {}  # on bytes and errors, by multiplier
        finite = [e for e in goal.sensitivity.all.values() if e and isfinite(e)]
        total = sum(finite, 0.0)
        # From where all errors together cost less than a byte, to where what one
        # rounding may take of the target costs more than the program.
        share = (UNMEASURED * goal.target) ** 2 / max(len(finite), 1)
        self.first = 1 / total if total else 1.0
        self.last = max(self.pin / share * 10, self.first)

    @property
    def cheapest(self) -> Price:
        """The price at which errors cost nothing."""
        return Price(0.0)

    @property
    def dearest(self) -> Price:
        """The price at which nothing is rounded that need not be."""
        return Price(self.last)

    def find(self, target: float) -> Price | None:
        """Return the price of the cheapest plan found that is predicted within a bound.

        Args:
            target: Largest predicted relative L2 error of the outputs.

        Returns:
            None if there is no such plan.
        """
        if self._keeps(Price(0.0), target):
            return Price(0.0)
        if not self._keeps(Price(self.last), target):
            return None
        low, high = log(self.first), log(self.last)
        under, over = Price(0.0), Price(self.last)
        for _ in range(SOLVES):
            middle = (low + high) / 2
            price = Price(exp(middle))
            if self._keeps(price, target):
                high, over = middle, price
            else:
                low, under = middle, price
        filled = (self._fill(base, target) for base in (under, Price(0.0)))
        found = (over, *filled)
        return min(found, key=lambda price: self.plan_at(price).cost.total_bytes)

    def _fill(self, price: Price, target: float) -> Price:
        """Return ``price`` with as few ops kept full as ``target`` needs.

        Alike ops change assignments at one price, all at once: between the plans on
        both assignments of it there are others. Here the ops that round worst are kept
        full. That is tried at a price that nearly kept the target, where one op that is
        kept may tip all that are like it, and at none.
        """
        worst = self.worst(price)
        low, high = 0, len(worst)
        while high - low > 1:
            middle = (low + high) // 2
            kept = replace(price, kept=frozenset(worst[:middle]))
            if self._keeps(kept, target):
                high = middle
            else:
                low = middle
        filled = replace(price, kept=frozenset(worst[:high]))
        return filled if self._keeps(filled, target) else Price(self.last)

    def worst(self, price: Price) -> list[str]:
        """Return the ops that round under the plan at a price, the worst first.

        If the search is strict, also those that have no error to first order.
        """
        made = self.goal.sensitivity.made(self.plan_at(price), self.goal.graph)
        total: dict[str, float] = defaultdict(float)
        for key, error in made.items():
            total[_op_of(self.goal.graph, key)] += error
        counted = (op for op in total if total[op] or self.strict)
        return sorted(counted, key=lambda op: -total[op])

    def _keeps(self, price: Price, target: float) -> bool:
        return (self.plan_at(price).predicted_error or 0.0) <= target

    def plan_at(self, price: Price) -> Plan:
        """Return the plan at a price.

        Its cost is in bytes alone, and it knows its predicted error.
        """
        if price not in self.plans:
            sensitivity, graph = self.goal.sensitivity, self.goal.graph
            errors = sensitivity.errors(price.multiplier, self.pin)
            if self.strict:
                silent = (key for key, error in sensitivity.all.items() if not error)
                errors.update(dict.fromkeys(silent, float(self.pin)))
            for key in errors if price.kept else ():
                if _op_of(graph, key) in price.kept:
                    errors[key] = self.pin
            plan = self.goal.plan_for(Objective(self.goal.model, errors))
            fewer = price.kept or self.strict  # of which it is the cheapest
            bound = None if fewer else plan.cost.lower_bound
            if bound is not None:
                self.bounds[price.multiplier] = bound
            plan = replace(plan, cost=replace(plan.cost, lower_bound=bound))
            plan = _without_errors(plan, sensitivity.made(plan, graph), errors)
            self.plans[price] = replace(
                plan,
                decisions=explained(plan, graph, sensitivity),
                warnings=tuple(map(_without_room, plan.warnings)),
                predicted_error=sensitivity.predicted(plan, graph),
            )
        return self.plans[price]

    def certified(self, plan: Plan) -> Plan:
        """Return ``plan`` with what no plan of no larger predicted error undercuts.

        That is Lagrangian duality: where bytes and errors at a price cost at least
        ``b``, bytes alone cost at least ``b`` less the price of all errors that there
        may be. Each error was rounded to whole bytes.
        """
        error, keys = (plan.predicted_error or 0.0) ** 2, self.goal.sensitivity.all
        found = [
            floor(bound - price * error - len(keys) / 2 * (price > 0))
            for price, bound in self.bounds.items()
            if isfinite(error)  # of an infinite one every plan is no worse
        ]
        own = plan.cost.lower_bound
        best = max([*found, *([] if own is None else [own])], default=None)
        return replace(plan, cost=replace(plan.cost, lower_bound=best))


def _without_room(line: str) -> str:
    """Return a warning; where it says that nothing is lowered, with the tolerance."""
    if not line.startswith(NOTHING_LOWERED):
        return line
    head = line.partition(":")[0]
    return f"{head}: nothing was lowered that pays and keeps the tolerance"


def _without_errors(
    plan: Plan, made: Mapping[Key, float], errors: Mapping[Key, float]
) -> Plan:
    """Return ``plan`` with a cost in bytes alone.

    The bound holds for all plans whose errors cost as much as those of this one.
    """
    price = sum(round(errors.get(key, 0)) for key in made)
    cost, bound = plan.cost, plan.cost.lower_bound
    bytes_alone = replace(
        cost,
        total_bytes=cost.total_bytes - price,
        overhead_bytes=cost.overhead_bytes - price,
        lower_bound=None if bound is None else bound - price,
    )
    return replace(plan, cost=bytes_alone)


def _op_of(graph: ProgramGraph, key: Key) -> str:
    """Return the op that rounds: the reader, or what makes a value that is stored."""
    if not isinstance(key, str):
        return key[1]
    producer = graph.producer.get(key)
    return producer.name if producer else key
