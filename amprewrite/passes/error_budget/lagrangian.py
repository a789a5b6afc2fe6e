"""Lagrangian search for the cheapest plan with a predicted error within a bound.

Errors are priced in bytes, and the price is raised until the plan of least cost has a
predicted error within the bound. Measurements are in
:mod:`amprewrite.passes.error_budget.measured_search`.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import exp, floor, isfinite, log, sqrt

from amprewrite.ir import ProgramGraph
from amprewrite.passes.cost.cost import Objective
from amprewrite.passes.cost.cost_model import CostModel
from amprewrite.passes.cost.eight_bits import saved_by
from amprewrite.passes.error_budget.overflow import explained
from amprewrite.passes.error_budget.probe_selection import ceiling
from amprewrite.passes.error_budget.refused_formats import without_eight_bits
from amprewrite.plan import NOTHING_LOWERED, Plan
from amprewrite.plan.sensitivity import EightBits, Key, Measurements, Sensitivity

UNMEASURED = 0.85
"""Share of the tolerance for a prediction that cannot be measured.

First-order predictions and measurements agreed within 15 % on models with random
weights, where tried.
"""

UNMEASURED_EIGHT_BITS = 0.7
"""The same where contractions round to 8 bits.

Predictions and measurements were within 1.25 of each other on small networks.
"""

MEASURED = 0.95
"""Share of a numeric tolerance for a measured error, since other inputs differ.

Their error was that of the measured ones within a few percent on all models tried.
"""

SOLVES = 14
"""Largest number of prices that are tried.

Where bisection is used, of about 30 decades: to within half a percent.
"""


@dataclass(frozen=True)
class Goal:
    """The goal of a search: a program, a bound and the prices.

    Attributes:
        measured: The program, the error of each rounding, and the bound.
        plan_for: Returns the plan of least cost for given error costs.
        model: Prices of the target.
        share: Share of the target that a measured error may reach.
        others: Plans of other placements, as candidates beside the search's own.
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
        """Bound on the relative L2 error of the outputs."""
        return self.measured.target


Kept = tuple[str, bool]
"""An op that must not round: to the low dtype, or, if true, to 8 bits."""


@dataclass(frozen=True)
class Price:
    """Price of errors: a multiplier, and ops that are kept full.

    Attributes:
        multiplier: Bytes for a mean squared relative error of 1.
        kept: Ops with roundings priced too high to be chosen.
    """

    multiplier: float
    kept: frozenset[Kept] = frozenset()


class Search:
    """Search for plans by the price of errors; plans are cached by price."""

    def __init__(self, goal: Goal, *, strict: bool = False) -> None:
        """Compute the range of prices in which the cheapest plan changes.

        Args:
            goal: The goal of the search.
            strict: Whether to keep full the roundings without a first-order error:
                values that are only compared, and values that no bounded output depends
                on.
        """
        self.goal, self.strict = goal, strict
        self.pin = ceiling(goal.graph, goal.model)
        self.plans: dict[Price, Plan] = {}
        self.bounds: dict[float, int] = {}  # on bytes and errors, by multiplier
        finite = [e for e in goal.sensitivity.bounded.values() if e and isfinite(e)]
        total = sum(finite, 0.0)
        # From a price at which all errors together cost less than a byte, to one at
        # which the share of the target for one rounding costs more than the program.
        share = (UNMEASURED * goal.target) ** 2 / max(len(finite), 1)
        self.first = 1 / total if total else 1.0
        self.last = max(self.pin / share * 10, self.first)

    @property
    def cheapest(self) -> Price:
        """The price at which errors cost nothing."""
        return Price(0.0)

    @property
    def dearest(self) -> Price:
        """The price at which only unavoidable roundings are made."""
        return Price(self.last)

    def find(self, target: float) -> Price | None:
        """Return the price of the cheapest plan found with a prediction in a bound.

        Args:
            target: Bound on the predicted relative L2 error of the outputs.

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
            middle, crossing = (low + high) / 2, self._crossing(under, over)
            if crossing is not None:
                if self._is_best(crossing, over):
                    break  # no plan between them is the cheapest at any price
                if low < log(crossing) < high:
                    middle = log(crossing)
            price = Price(exp(middle))
            if self._keeps(price, target):
                high, over = middle, price
            else:
                low, under = middle, price
        filled = (self._fill(base, target) for base in (under, Price(0.0)))
        found = (over, *filled)
        return min(found, key=lambda price: self.weight(self.plan_at(price)))

    def _crossing(self, under: Price, over: Price) -> float | None:
        """Return the multiplier at which the plans of two prices cost the same.

        None if there is none, or if contractions round to 8 bits: these are chosen
        beside the placement, which alone is the cheapest at its price.

        Args:
            under: The lower price.
            over: The higher price.
        """
        if any(isinstance(key, EightBits) for key in self.goal.sensitivity.all):
            return None
        low, high = self.plan_at(under), self.plan_at(over)
        errors = _squared(low) - _squared(high)
        more = self.weight(high) - self.weight(low)
        known = isfinite(errors) and errors > 0 and more > 0
        return more / errors if known and isfinite(more / errors) else None

    def _is_best(self, multiplier: float, price: Price) -> bool:
        """Return whether no plan costs less at a multiplier than that of a price.

        Errors count in whole bytes.
        """
        found, known = (
            self.weight(plan) + multiplier * _squared(plan)
            for plan in map(self.plan_at, (Price(multiplier), price))
        )
        return found >= known - len(self.goal.sensitivity.all) / 2

    def weight(self, plan: Plan) -> int:
        """Return the bytes of a plan, less those saved by contractions in 8 bits."""
        return plan.cost.total_bytes - saved_by(self.goal.graph, plan.by_op)

    def _fill(self, price: Price, target: float) -> Price:
        """Return ``price`` with as few ops kept full as ``target`` needs.

        Similar ops change assignments at one price, all together: between the two plans
        at that price there are others. Here the ops with the largest roundings are kept
        full. It is tried at a price that nearly met the target, where one kept op may
        change all similar ones, and at price zero.
        """
        worst = self._worst(price)
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
        """Return the ops that round in the plan at a price, the worst first.

        A strict search includes those without a first-order error.
        """
        return list(dict.fromkeys(op for op, _ in self._worst(price)))

    def _worst(self, price: Price) -> list[Kept]:
        """Return the roundings of the plan at a price by op, the worst first."""
        graph, found = self.goal.graph, self.goal.sensitivity
        total: dict[Kept, float] = defaultdict(float)
        for key in found.roundings(self.plan_at(price), graph):
            total[_kept(graph, key)] += found.bounded[key]
        counted = (op for op in total if total[op] or self.strict)
        return sorted(counted, key=lambda op: -total[op])

    def _keeps(self, price: Price, target: float) -> bool:
        return self.goal.sensitivity.larger(self.plan_at(price)) <= target

    def plan_at(self, price: Price) -> Plan:
        """Return the plan at a price, with its predicted error.

        Its cost is in bytes alone.
        """
        if price not in self.plans:
            sensitivity, graph = self.goal.sensitivity, self.goal.graph
            errors = sensitivity.errors(price.multiplier, self.pin)
            if self.strict:
                every = sensitivity.bounded.items()
                silent = (key for key, error in every if not error)
                errors.update(dict.fromkeys(silent, float(self.pin)))
            for key in errors if price.kept else ():
                if _kept(graph, key) in price.kept:
                    errors[key] = self.pin
            plan = self.goal.plan_for(Objective(self.goal.model, errors))
            fewer = price.kept or self.strict  # of which it is the cheapest
            bound = None if fewer else plan.cost.lower_bound
            if bound is not None:
                self.bounds[price.multiplier] = bound
            plan = replace(plan, cost=replace(plan.cost, lower_bound=bound))
            made = sensitivity.made(plan, graph)
            plan = _without_errors(plan, made, errors)
            self.plans[price] = replace(
                plan,
                decisions=without_eight_bits(
                    explained(plan, graph, sensitivity), sensitivity
                ),
                warnings=tuple(map(_without_room, plan.warnings)),
                predicted_error=sqrt(sum(made.values())),
                gradient_error=sensitivity.gradient_error(plan, graph),
            )
        return self.plans[price]

    def certified(self, plan: Plan) -> Plan:
        """Return ``plan`` with a lower bound for all plans of no larger error.

        By Lagrangian duality: if bytes and errors at a price cost at least ``b``, then
        bytes alone cost at least ``b`` less the price of the largest allowed error.
        Each error was rounded to whole bytes.
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


def _squared(plan: Plan) -> float:
    """Return the mean squared relative error that is predicted of a plan."""
    return (plan.predicted_error or 0.0) ** 2


def _without_room(line: str) -> str:
    """Return a warning; "nothing lowered" becomes one about the tolerance."""
    if not line.startswith(NOTHING_LOWERED):
        return line
    head = line.partition(":")[0]
    return f"{head}: nothing was lowered that pays and keeps the tolerance"


def _without_errors(
    plan: Plan, made: Mapping[Key, float], errors: Mapping[Key, float]
) -> Plan:
    """Return ``plan`` with a cost in bytes alone.

    The bound holds for all plans with errors of the same total price.
    """
    counted = (key for key in made if not isinstance(key, EightBits))
    price = sum(round(errors.get(key, 0)) for key in counted)
    cost, bound = plan.cost, plan.cost.lower_bound
    bytes_alone = replace(
        cost,
        total_bytes=cost.total_bytes - price,
        overhead_bytes=cost.overhead_bytes - price,
        lower_bound=None if bound is None else bound - price,
    )
    return replace(plan, cost=bytes_alone)


def _kept(graph: ProgramGraph, key: Key) -> Kept:
    """Return the reader or the producer that rounds, and whether it is to 8 bits."""
    if isinstance(key, EightBits):
        return key.op, True
    if isinstance(key, tuple):
        return key[1], False
    producer = graph.producer.get(key)
    return producer.name if producer else key, False
