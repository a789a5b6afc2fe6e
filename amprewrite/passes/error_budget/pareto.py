"""Pareto front of error and bytes: the plans that are cheapest for some error."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from amprewrite.passes.error_budget.budget import Budget
from amprewrite.passes.error_budget.lagrangian import Search
from amprewrite.plan import Plan
from amprewrite.plan.bounds import Point
from amprewrite.plan.sensitivity import Measurements

FEWEST = 2
"""Least number of points: the cheapest plan and the most accurate one."""

LEAST = 1e-2
"""Share of the largest error below which errors count as zero."""


@dataclass(frozen=True)
class Front(Budget):
    """Planner that collects plans for many errors, those of all float outputs together.

    Attributes:
        count: Number of errors to aim at, evenly up to that of the cheapest plan.
        points: The points found, by falling error, placement ``promote`` last.
    """

    count: int = field(kw_only=True)
    points: list[Point] = field(default_factory=list[Point], kw_only=True)

    @property
    def bounds_gradients(self) -> bool:
        """False: errors are those of outputs."""
        return False

    def plan(self, measured: Measurements) -> Plan:
        """Collect :attr:`points`; return the cheapest plan."""
        known = measured
        free = self.placed("optimal", known)
        largest = known.sensitivity.predicted(free, known.graph)
        # Prices are looked for up to where this little is left of the error.
        known = replace(known, target=largest * LEAST or known.target)
        search = Search(self.goal(known))
        plans = list(_undominated(_swept(search, self.count)))
        other = self.placed("promote", known)
        found = known.sensitivity.predicted(other, known.graph)
        other = replace(other, predicted_error=found)
        proved = map(search.certified, plans)
        self.points.extend(_point("optimal", plan, known) for plan in proved)
        self.points.append(_point("promote", other, known))
        return plans[0]


def _point(placement: str, plan: Plan, measured: Measurements) -> Point:
    error = measured.measure(plan)
    return Point(placement, plan, plan.predicted_error or 0.0, error)


def _swept(search: Search, count: int) -> Iterator[Plan]:
    """Yield the cheapest plans within errors, the largest error first."""
    cheapest = search.plan_at(search.cheapest)
    yield cheapest
    largest = cheapest.predicted_error or 0.0
    for step in reversed(range(count - 1)):
        price = search.find(largest * step / (count - 1))
        if price is None:  # the rest is rounded at every price
            yield search.plan_at(search.dearest)
            return
        yield search.plan_at(price)


def _undominated(plans: Iterator[Plan]) -> Iterator[Plan]:
    """Yield the plans that have a smaller error than all cheaper ones."""
    best = None
    ordered = sorted(plans, key=lambda p: (p.cost.total_bytes, p.predicted_error or 0))
    for plan in ordered:
        error = plan.predicted_error or 0.0
        if best is None or error < best:
            best = error
            yield plan
