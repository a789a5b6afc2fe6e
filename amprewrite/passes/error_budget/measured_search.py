"""The cheapest plan whose program, as it runs, stays within a tolerance.

Plans are proposed by their predicted errors and measured. Where one is worse than
predicted, the prediction is asked for less, and where one keeps the tolerance, for
more. Predictions are too high by a share that is not the same for all plans, so that
the plans of other placements are tried last, if they are cheaper.
"""

from dataclasses import dataclass, field, replace
from math import inf, isfinite, sqrt

from amprewrite.errors import ToleranceError
from amprewrite.passes.error_budget.lagrangian import UNMEASURED, Goal, Search
from amprewrite.plan import Plan

MEASUREMENTS = 8
"""How many plans are run that the search proposes."""

CLOSE = 1.02
"""Ratio of predictions that are not told apart: other roundings decide."""

GROWTH = 1.08
"""What the target is multiplied with at least where a measured error keeps it: the
ratio of predicted to measured differs by so much between plans of one model (1.11 and
1.20 on BERT-base)."""

ROOM = 1.25
"""Largest ratio of a prediction to a number that bounds it, whatever is measured: on
whole models predictions were up to 1.2 times too high, and where one is further off
(few outputs, roundings that cancel) other inputs have the error that was predicted."""

STRICTER = 0.5
"""What the target is multiplied with where a measured error is not finite."""

NAMED = 5
"""How many ops a message names."""


def plan_within(goal: Goal) -> Plan:
    """Return the cheapest plan found whose program keeps the target.

    Raises:
        ToleranceError: No plan does, as far as was looked.
    """
    return _Trials(goal, Search(goal), goal.share * goal.target).run()


@dataclass
class _Trials:
    """What was measured so far.

    Attributes:
        goal: What is looked for.
        search: Proposes plans by their predicted errors.
        limit: Largest measured error.
        best: The cheapest plan that keeps it.
        kept: Largest prediction that was asked for and kept it.
        failed: Smallest one that did not.
        errors: What was measured.
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
        if self.best and plan.cost.total_bytes >= self.best.cost.total_bytes:
            return 0.0  # there is nothing to gain: like one that keeps the target
        measured = self.goal.measured.measure(plan)
        if measured is not None:
            self.errors.append(measured)
        return measured

    def _next(self, plan: Plan, asked: float, measured: float) -> float:
        """Take note of what was measured; return which prediction to ask for next."""
        if measured > self.limit:
            # Below what failed: the same plan again would measure the same.
            self.failed = min(asked, plan.predicted_error or 0.0)
            ratio = self.limit / measured if isfinite(measured) else STRICTER
            return max(self.failed * ratio, sqrt(self.failed * self.kept))
        if self.best is None or plan.cost.total_bytes < self.best.cost.total_bytes:
            self.best = plan
        self.kept = asked
        more = self.limit / measured if measured else GROWTH
        room = ROOM * self.goal.target
        return min(asked * max(more, GROWTH), self.failed / CLOSE, room)

    def _try_others(self) -> None:
        """Take the plan of another placement if it is cheaper and keeps the target."""
        for other in sorted(self.goal.others(), key=lambda p: p.cost.total_bytes):
            if self.best and other.cost.total_bytes >= self.best.cost.total_bytes:
                return
            known = self.goal.sensitivity.predicted(other, self.goal.graph)
            plan = replace(other, predicted_error=known, placement="optimal")
            alike = self.goal.share == 1.0  # measured beside what bounds it
            if not alike and known > ROOM * self.goal.target:
                continue
            measured = self._measure(plan)
            if measured is not None and measured <= self.limit:
                self.best = plan

    def _strictly(self) -> Plan:
        """Look again among the plans that keep full what is only compared.

        It has no error to first order, so that it is low at all prices.

        Raises:
            ToleranceError: None of them will do either.
        """
        if not self.search.strict:
            strict = Search(self.goal, strict=True)
            return _Trials(self.goal, strict, self.limit, errors=self.errors).run()
        plan = self.search.plan_at(self.search.dearest)
        found = self._measure(plan)
        known = plan.predicted_error or 0.0
        raise self._failure(min([*self.errors, known if found is None else found]))

    def _unmeasured(self) -> Plan:
        """Return the cheapest plan by its prediction alone.

        Raises:
            ToleranceError: None keeps the target.
        """
        price = self.search.find(UNMEASURED * self.goal.target)
        if price is None:
            least = self.search.plan_at(self.search.dearest)
            raise self._failure(least.predicted_error or 0.0)
        return self.search.certified(self.search.plan_at(price))

    def _failure(self, best: float) -> ToleranceError:
        goal, names = self.goal, self.search.worst(self.search.dearest)
        ops = [f"%{name}" for name in names[:NAMED]]
        because = (
            f"what no plan keeps full is rounded by {', '.join(ops)}"
            if ops
            else "the error is not that of roundings which a plan chooses: the policy "
            "hands low outputs back, or float32 itself is no better"
        )
        msg = (
            f"no plan found with a relative error of {goal.target:.3g}: the best has "
            f"{best:.3g}; {because}; allow a larger tolerance, or let the policy keep "
            f"more ops full"
        )
        return ToleranceError(msg, best, names)
