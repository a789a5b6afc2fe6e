"""Plans within a tolerance, timed where they will run: the fastest one is taken."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import isfinite

from amprewrite.ir import ProgramGraph
from amprewrite.passes.cost.cost import Objective
from amprewrite.passes.cost.cost_model import cost_model
from amprewrite.passes.error_budget.budget import Budget
from amprewrite.passes.error_budget.measured_search import (
    UNMEASURED,
    Goal,
    Proposals,
    plan_within,
)
from amprewrite.passes.pipeline import FULL
from amprewrite.plan import DEFAULT_PRICES, NOTHING_LOWERED, Plan
from amprewrite.plan.bounds import FASTEST
from amprewrite.plan.fields import TimedPlan
from amprewrite.plan.hardware import Conditions, load_timed, save_timed
from amprewrite.plan.sensitivity import Measurements
from amprewrite.plan.validation.fingerprint import fingerprint

SMALLER = (4.0, 16.0)
"""Divisors of the predicted error of the cheapest plan, for candidates beside it.

A plan of less error lowers fewer ops, which is faster where low kernels are slow: 16 is
four bits of 8, after which little but single contractions is low.
"""

NO_MEMORY = (
    "out of memory while plans were timed: the plan is the cheapest within the "
    "tolerance by prices; time it on smaller arguments"
)
"""Warning of a plan that was not timed."""

UNTIMED = (
    "planned by prices, not timed: this call has no values to time on, and the program "
    "is not the one that was timed"
)
"""Warning of a plan for arguments without values."""

PREFERRED = (
    "full precision was the fastest of the {count} plans within the tolerance that "
    "were timed"
)
"""Reason for a plan that lowers nothing."""


@dataclass(frozen=True)
class Fastest(Budget):
    """Planner that takes the fastest of the plans within a tolerance.

    Candidates are the cheapest plan by prices, plans of less error, the plans of the
    other placements that are within the tolerance, and full precision, so that the
    result is never slower than that.

    Attributes:
        conditions: Settings beside the program on which times depend.
    """

    conditions: Conditions = field(kw_only=True)

    def remembered(
        self, graph: ProgramGraph, *, keep_parameter_dtype: bool
    ) -> Plan | None:
        """Return the plan that was timed before for a program; None if none was."""
        found = load_timed(_lines(graph, keep_parameter_dtype), self.conditions)
        return found if found and found.program == fingerprint(graph) else None

    def plan(self, measured: Measurements) -> Plan:
        """Return the fastest plan within the tolerance, and remember it.

        Raises:
            ToleranceError: No plan keeps the tolerance.
        """
        found = _Candidates(self, measured)
        plans = dict(found.within())
        cheapest = next(iter(plans.values()))
        if measured.clock is None:
            return self._recorded(cheapest, measured).with_warnings(UNTIMED)
        seconds = measured.clock(plans)
        if seconds is None:
            return self._recorded(cheapest, measured).with_warnings(NO_MEMORY)
        timed = tuple(
            TimedPlan(name, seconds[name], found.errors[name], plan.cost.total_bytes)
            for name, plan in sorted(plans.items(), key=lambda pair: seconds[pair[0]])
        )
        chosen = plans[timed[0].name]
        chosen = replace(
            self._recorded(chosen, measured),
            timed=timed,
            warnings=tuple(_reasoned(chosen, len(timed))),
        )
        program = _lines(measured.graph, measured.training)
        save_timed(chosen, program, self.conditions)
        return chosen

    def _recorded(self, plan: Plan, measured: Measurements) -> Plan:
        return replace(self.recorded(plan, measured), placement=FASTEST)


class _Candidates:
    """The plans of a program that are worth timing.

    Attributes:
        errors: Relative error of each, by name.
    """

    def __init__(self, budget: Budget, measured: Measurements) -> None:
        self.budget, self.measured = budget, measured
        self.errors: dict[str, float] = {}

    def within(self) -> Iterator[tuple[str, Plan]]:
        """Yield candidates within the tolerance with their names, the cheapest first.

        Raises:
            ToleranceError: There is none.
        """
        goal = self.budget.goal(self.measured)
        limit, seen = goal.share * goal.target, set[object]()
        for tried, plan in self._plans(goal):
            key = _numerics(plan)
            if key in seen:
                continue
            seen.add(key)
            name = tried if plan.lowered else FULL
            error = self._error(plan)
            if error <= limit or (name in ("optimal", FULL) and isfinite(error)):
                self.errors[name] = error
                yield name, plan

    def _plans(self, goal: Goal) -> Iterator[tuple[str, Plan]]:
        cheapest = plan_within(goal)
        yield "optimal", cheapest
        if goal.model.source != DEFAULT_PRICES:
            yield "optimal by bytes", self._by_bytes(goal)
        largest = cheapest.predicted_error or 0.0
        proposals = Proposals(goal)
        for divisor in SMALLER:
            plan = proposals.within(largest / divisor)
            if plan is not None:
                name = f"optimal, error / {divisor:.0f}"
                yield name, proposals.certified(plan)
        for name in ("promote", "paint", FULL):
            plan = self.budget.placed(name, self.measured)
            known = goal.sensitivity.predicted(plan, goal.graph)
            yield name, replace(plan, predicted_error=known)

    def _by_bytes(self, goal: Goal) -> Plan:
        """Return the cheapest plan at the default prices, which count bytes alone.

        Where measured prices are off, or taken from another processor, it is the one
        that lowers the ops for which that saves memory traffic.
        """
        default = cost_model(goal.model.target)
        model = replace(default, kernels=goal.model.kernels)
        budget = replace(self.budget, objective=Objective(model))
        return plan_within(budget.goal(self.measured))

    def _error(self, plan: Plan) -> float:
        """Return the measured error of a plan; without one the predicted, with room.

        A program that draws random numbers has no measured error.
        """
        found = self.measured.measure(plan)
        if found is None:
            return (plan.predicted_error or 0.0) / UNMEASURED
        return found


def _lines(graph: ProgramGraph, trains: bool) -> tuple[str, ...]:  # noqa: FBT001
    """Return a program with its extents as lines; training steps are another one."""
    sizes = (f"{name}: {value.shape}" for name, value in graph.values.items())
    return (*fingerprint(graph), *sizes, f"trains={trains}")


def _numerics(plan: Plan) -> object:
    """Return the part of a plan that decides which program runs."""
    dtypes = tuple((d.precision, d.operands, d.results) for d in plan.decisions)
    casts = frozenset((c.value, c.to_dtype, c.uses, c.folding) for c in plan.casts)
    return dtypes, casts, frozenset(plan.storage)


def _reasoned(plan: Plan, count: int) -> Iterator[str]:
    """Yield the warnings of a plan; why nothing is lowered is known by timing."""
    for line in plan.warnings:
        head, _, _ = line.partition(":")
        nothing = line.startswith(NOTHING_LOWERED)
        yield f"{head}: {PREFERRED.format(count=count)}" if nothing else line
