"""Pareto front of error and bytes: the plans that are cheapest for some error."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from amprewrite.passes.error_budget.budget import Budget
from amprewrite.passes.error_budget.measured_search import Proposals
from amprewrite.plan import Plan
from amprewrite.plan.bounds import Point
from amprewrite.plan.sensitivity import Measurements

FEWEST = 2
"""Least number of points: the cheapest plan and the most accurate one."""


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
        proposals = Proposals(self.goal(measured))
        plans = list(_undominated(_swept(proposals, self.count)))
        promoted = self.placed("promote", measured)
        error = measured.sensitivity.predicted(promoted, measured.graph)
        promoted = replace(promoted, predicted_error=error)
        proved = map(proposals.certified, plans)
        self.points.extend(_point("optimal", plan, measured) for plan in proved)
        self.points.append(_point("promote", promoted, measured))
        return plans[0]


def _point(placement: str, plan: Plan, measured: Measurements) -> Point:
    error = measured.measure(plan)
    return Point(placement, plan, plan.predicted_error or 0.0, error)


def _swept(proposals: Proposals, count: int) -> Iterator[Plan]:
    """Yield the cheapest plans within errors, the largest error first."""
    yield proposals.cheapest
    largest = proposals.cheapest.predicted_error or 0.0
    for step in reversed(range(count - 1)):
        plan = proposals.within(largest * step / (count - 1))
        if plan is None:  # the rest is rounded by all plans
            yield proposals.least
            return
        yield plan


def _undominated(plans: Iterator[Plan]) -> Iterator[Plan]:
    """Yield the plans that have a smaller error than all cheaper ones."""
    best = None
    ordered = sorted(plans, key=lambda p: (p.cost.total_bytes, p.predicted_error or 0))
    for plan in ordered:
        error = plan.predicted_error or 0.0
        if best is None or error < best:
            best = error
            yield plan
