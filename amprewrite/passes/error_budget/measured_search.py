"""Search for the cheapest plan with a measured error within the tolerance.

Plans are proposed by their predicted errors and measured. If a measured error is above
the bound, the next prediction is lower; if it is within, higher. Predictions are too
high by a factor that differs between plans, so the plans of other placements are tried
last, if they are cheaper.
"""

from dataclasses import dataclass, field, replace
from math import inf, isfinite, sqrt

from amprewrite.errors import ToleranceError
from amprewrite.passes.error_budget.lagrangian import (
    UNMEASURED,
    UNMEASURED_EIGHT_BITS,
    Goal,
    Search,
)
from amprewrite.plan import Plan

MEASUREMENTS = 8
"""Largest number of proposed plans that are measured."""

CLOSE = 1.02
"""Ratio within which two predictions count as equal: other roundings decide."""

GROWTH = 1.08
"""Least factor on the prediction after a measured error within the bound.

The ratio of predicted to measured errors differs by as much between plans of one model
(1.11 and 1.20 on BERT-base).
"""

ROOM = 1.25
"""Largest ratio of a prediction to a numeric bound, despite measurements.

On whole models predictions were up to 1.2 times too high; where one is further off (few
outputs, roundings that cancel), other inputs have the predicted error.
"""

STRICTER = 0.5
"""Factor on the prediction after a measured error that is not finite."""

NAMED = 5
"""Number of ops that a message names."""


def plan_within(goal: Goal) -> Plan:
    """Return the cheapest plan found with a measured error within the target.

    Raises:
        ToleranceError: No plan was found.
    """
    return _Trials(goal, Search(goal), goal.share * goal.target).run()


@dataclass
class _Trials:
    """State of the search: measurements, and the best plan so far.

    Attributes:
        goal: The goal of the search.
        search: Proposes plans by their predicted errors.
        limit: Bound on the measured error.
        best: The cheapest plan within the bound.
        kept: Largest prediction requested with a measured error within the bound.
        failed: Smallest prediction with a measured error above it.
        errors: Measured errors.
    """

    goal: Goal
    search: Search
    limit: float
    best: Plan | None = None
    kept: float = 0.0
    failed: float = inf
    errors: list[float] = field(default_factory=list[float])

    def run(self) -> Plan:
        asked = self.limit
        for _ in range(MEASUREMENTS):
            price = self.search.find(asked)
            if price is None:
                break
            plan = self.search.plan_at(price)
            measured = self._measure(plan)
            if measured is None:
                return self._unmeasured()
            asked = self._next(plan, asked, measured)
            cheapest = price == self.search.cheapest and measured <= self.limit
            if cheapest or (self.best and asked < CLOSE * self.kept):
                break
        if not self.search.strict:
            self._try_others()
        if self.best is None:
            return self._strictly()
        return self.search.certified(self.best)

    def _measure(self, plan: Plan) -> float | None:
        if self._is_no_better(plan):
            return 0.0  # there is nothing to gain: like one that keeps the target
        measured = self.goal.measured.measure(plan)
        if measured is not None:
            self.errors.append(measured)
        return measured

    def _predicted(self, plan: Plan) -> float:
        return self.goal.sensitivity.larger(plan)

    def _is_no_better(self, plan: Plan) -> bool:
        weight = self.search.weight
        return self.best is not None and weight(plan) >= weight(self.best)

    def _next(self, plan: Plan, asked: float, measured: float) -> float:
        """Record a measured error; return the prediction to request next."""
        if measured > self.limit:
            # Below the failed prediction: the same plan would have the same error.
            self.failed = min(asked, self._predicted(plan))
            ratio = self.limit / measured if isfinite(measured) else STRICTER
            return max(self.failed * ratio, sqrt(self.failed * self.kept))
        if not self._is_no_better(plan):
            self.best = plan
        self.kept = asked
        more = self.limit / measured if measured else GROWTH
        room = ROOM * self.goal.target
        return min(asked * max(more, GROWTH), self.failed / CLOSE, room)

    def _try_others(self) -> None:
        """Take the plan of another placement if it is cheaper and within the target."""
        for other in sorted(self.goal.others(), key=self.search.weight):
            if self._is_no_better(other):
                return
            found, graph = self.goal.sensitivity, self.goal.graph
            plan = replace(
                other,
                predicted_error=found.predicted(other, graph),
                gradient_error=found.gradient_error(other, graph),
                placement="optimal",
            )
            known = self._predicted(plan)
            alike = self.goal.share == 1.0  # measured on the inputs of the bound
            if not alike and known > ROOM * self.goal.target:
                continue
            measured = self._measure(plan)
            if measured is not None and measured <= self.limit:
                self.best = plan

    def _strictly(self) -> Plan:
        """Search again with values that are only compared kept full.

        They have no first-order error, so that they are low at all prices.

        Raises:
            ToleranceError: No such plan is within the target either.
        """
        if not self.search.strict:
            strict = Search(self.goal, strict=True)
            return _Trials(self.goal, strict, self.limit, errors=self.errors).run()
        plan = self.search.plan_at(self.search.dearest)
        found = self._measure(plan)
        known = self._predicted(plan)
        raise self._failure(min([*self.errors, known if found is None else found]))

    def _unmeasured(self) -> Plan:
        """Return the cheapest plan by its prediction alone.

        Raises:
            ToleranceError: None keeps the target.
        """
        rounds = self.goal.sensitivity.eight
        share = UNMEASURED_EIGHT_BITS if rounds else UNMEASURED
        price = self.search.find(share * self.goal.target)
        if price is None:
            least = self.search.plan_at(self.search.dearest)
            raise self._failure(self._predicted(least))
        return self.search.certified(self.search.plan_at(price))

    def _failure(self, best: float) -> ToleranceError:
        goal, names = self.goal, self.search.worst(self.search.dearest)
        ops = [f"%{name}" for name in names[:NAMED]]
        because = (
            f"every plan rounds at {', '.join(ops)}"
            if ops
            else "it is not caused by ops that a plan lowers: the policy returns low "
            "outputs, or float32 itself is no better"
        )
        whose = "of outputs and gradients " if goal.sensitivity.gradients else ""
        msg = (
            f"no plan found with a relative error {whose}of at most "
            f"{goal.target:.3g}; the smallest one is {best:.3g}: {because}; allow a "
            f"larger tolerance, or give more ops class deny in the policy"
        )
        return ToleranceError(msg, best, names)
