"""Search for the cheapest plan with a measured error within the tolerance.

1. A plan is proposed: the cheapest within a bound on its predicted error, by one
   integer program (:mod:`amprewrite.passes.placement.integer_program`).
2. It is measured. Predictions are too high or too low by a factor that differs between
   plans: if the measured error is above the bound, the next plan is asked for with a
   lower prediction; if it is within, with a higher one.
3. The plans of other placements are tried last, if they are cheaper.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf, isfinite, sqrt

from amprewrite.errors import ToleranceError
from amprewrite.ir import Op, ProgramGraph
from amprewrite.passes.cost.cost import FREE, Objective, saved_by
from amprewrite.passes.cost.cost_model import CostModel
from amprewrite.plan import NOTHING_LOWERED, Decision, Plan
from amprewrite.plan.sensitivity import (
    EightBits,
    Limit,
    Measurements,
    Sensitivity,
    op_of,
)

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

SUMMED = 1 + 1e-12
"""Factor on a bound within which sums of the same errors differ by their rounding."""

NAMED = 5
"""Number of ops that a message names."""


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


class Proposals:
    """The cheapest plans within bounds on predicted errors, and what they certify."""

    def __init__(self, goal: Goal, *, strict: bool = False) -> None:
        """Start without plans.

        Args:
            goal: The goal of the search.
            strict: Whether to keep full the roundings without a first-order error:
                values that are only compared, and values that no bounded output depends
                on.
        """
        self.goal, self.strict = goal, strict
        self.bounds: list[tuple[float, int]] = []  # on errors, and on bytes of these

    @cached_property
    def cheapest(self) -> Plan:
        """The plan for which only infinite errors are avoided."""
        return self._plan(inf)

    @cached_property
    def least(self) -> Plan:
        """The cheapest of the plans with the least predicted error."""
        try:
            return self._plan(0.0)
        except ToleranceError as error:
            least = error.best
        return self._plan(least * (1 + 1e-9)) if least else self.cheapest

    def within(self, bound: float) -> Plan | None:
        """Return the cheapest plan with a predicted error within a bound.

        Args:
            bound: Bound on the predicted relative L2 error of the outputs.

        Returns:
            None if there is no such plan.
        """
        larger = self.goal.sensitivity.larger
        try:
            cheapest = self.cheapest
            plan = cheapest if larger(cheapest) <= bound else self._plan(bound)
        except ToleranceError:
            return None
        return plan if larger(plan) <= bound * SUMMED else None

    def _plan(self, bound: float) -> Plan:
        """Return the cheapest plan within a bound, with its predicted error.

        Raises:
            ToleranceError: There is none.
        """
        sensitivity, graph = self.goal.sensitivity, self.goal.graph
        limits = sensitivity.limits(bound)
        if self.strict:
            silent = [key for key, error in sensitivity.bounded.items() if not error]
            limits = (*limits, Limit(dict.fromkeys(silent, inf), inf))
        plan = self.goal.plan_for(Objective(self.goal.model, limits))
        if not self.strict and plan.cost.lower_bound is not None:
            self.bounds.append((bound, plan.cost.lower_bound))
        return replace(
            plan,
            decisions=without_eight_bits(
                explained(plan, graph, sensitivity), sensitivity
            ),
            warnings=tuple(map(_without_room, plan.warnings)),
            predicted_error=sensitivity.predicted(plan, graph),
            gradient_error=sensitivity.gradient_error(plan, graph),
        )

    def weight(self, plan: Plan) -> int:
        """Return the bytes of a plan, less those saved by contractions in 8 bits."""
        return plan.cost.total_bytes - saved_by(self.goal.graph, plan.by_op)

    def worst(self, plan: Plan) -> list[str]:
        """Return the ops that round in a plan, the worst first.

        A strict search includes those without a first-order error.
        """
        sensitivity, total = self.goal.sensitivity, defaultdict[str, float](float)
        for key in sensitivity.roundings(plan, self.goal.graph):
            total[op_of(key, self.goal.graph)] += sensitivity.bounded[key]
        counted = (op for op in total if total[op] or self.strict)
        return sorted(counted, key=lambda op: -total[op])

    def certified(self, plan: Plan, bound: float = 0.0) -> Plan:
        """Return ``plan`` with a lower bound for all plans of no larger error.

        Args:
            plan: The plan.
            bound: Least error up to which the lower bound holds.
        """
        error = max(self.goal.sensitivity.larger(plan), bound)
        certificates = [least for limit, least in self.bounds if limit >= error]
        least = max(certificates, default=None)
        return replace(plan, cost=replace(plan.cost, lower_bound=least))


def _without_room(line: str) -> str:
    """Return a warning; "nothing lowered" becomes one about the tolerance."""
    if not line.startswith(NOTHING_LOWERED):
        return line
    head = line.partition(":")[0]
    return f"{head}: nothing was lowered that pays and keeps the tolerance"


def plan_within(goal: Goal) -> Plan:
    """Return the cheapest plan found with a measured error within the target.

    Raises:
        ToleranceError: No plan was found.
    """
    return _Trials(goal, Proposals(goal), goal.share * goal.target).run()


@dataclass
class _Trials:
    """State of the search: measurements, and the best plan so far.

    Attributes:
        goal: The goal of the search.
        proposals: The cheapest plans within predicted errors.
        limit: Bound on the measured error.
        best: The cheapest plan within the bound.
        kept: Largest prediction requested with a measured error within the bound.
        failed: Smallest prediction with a measured error above it.
        errors: Measured errors.
    """

    goal: Goal
    proposals: Proposals
    limit: float
    best: Plan | None = None
    kept: float = 0.0
    failed: float = inf
    errors: list[float] = field(default_factory=list[float])

    def run(self) -> Plan:
        asked = self.limit
        for _ in range(MEASUREMENTS):
            plan = self.proposals.within(asked)
            if plan is None:
                break
            measured = self._measure(plan)
            if measured is None:
                return self._unmeasured()
            asked = self._next(plan, asked, measured)
            cheapest = plan is self.proposals.cheapest
            if cheapest and measured <= self.limit:
                break
            if self.best and asked < CLOSE * self.kept:
                break
        if not self.proposals.strict:
            self._try_others()
        if self.best is None:
            return self._strictly()
        return self.proposals.certified(self.best, self.limit)

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
        weight = self.proposals.weight
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
        for other in sorted(self.goal.others(), key=self.proposals.weight):
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
        if not self.proposals.strict:
            strict = Proposals(self.goal, strict=True)
            return _Trials(self.goal, strict, self.limit, errors=self.errors).run()
        plan = self.proposals.least
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
        bound = share * self.goal.target
        plan = self.proposals.within(bound)
        if plan is None:
            raise self._failure(self._predicted(self.proposals.least))
        return self.proposals.certified(plan, bound)

    def _failure(self, best: float) -> ToleranceError:
        goal, names = self.goal, self.proposals.worst(self.proposals.least)
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


# Reasons of ops that are full because low precision cannot represent their values.


def explained(
    plan: Plan, graph: ProgramGraph, sensitivity: Sensitivity
) -> tuple[Decision, ...]:
    """Return the decisions, with an infinite error as reason where it decided."""
    return tuple(
        _explained(plan.by_op[op.name], op, plan, sensitivity) for op in graph.ops
    )


def _explained(
    decision: Decision, op: Op, plan: Plan, sensitivity: Sensitivity
) -> Decision:
    if decision.precision != plan.full or decision.op_class not in FREE:
        return decision
    for name in op.results:
        if sensitivity.stored.get(name) == inf:
            return replace(decision, why=_beyond(name, "its values", plan, sensitivity))
    for name in op.operands:
        if sensitivity.read.get((name, op.name)) == inf:
            what = f"the values of %{name}"
            return replace(decision, why=_beyond(name, what, plan, sensitivity))
    return decision


def _beyond(name: str, what: str, plan: Plan, sensitivity: Sensitivity) -> str:
    if name in sensitivity.peaks:
        return f"{what} reach {sensitivity.peaks[name]:.1e}, beyond {plan.low}"
    return f"the error of {what} in {plan.low} has no bound"


# Reasons of contractions that a tolerance keeps out of 8 bits.


def without_eight_bits(
    decisions: Iterable[Decision], sensitivity: Sensitivity
) -> tuple[Decision, ...]:
    """Return decisions; those that might round to 8 bits and do not say why."""
    by_op = sensitivity.eight_by_op
    return tuple(
        replace(found, why=f"{found.why}; {_reason(by_op[found.op], sensitivity)}")
        if found.op in by_op and not found.quantises
        else found
        for found in decisions
    )


def _reason(key: EightBits, sensitivity: Sensitivity) -> str:
    error = sensitivity.eight[key]
    if not isfinite(error):
        return (
            "not in 8 bits: the error of its operands is not known, because they are "
            "written in place or are not finite"
        )
    found = sensitivity.gradients
    said = f"operands in {key.format} alone cause an error of {sqrt(error):.1e}"
    if found is None:
        return f"not in 8 bits: {said}"
    gradients = f"{sqrt(found.square(key.op)):.1e} of gradients"
    said = f"{said}, and {gradients}" if key.format else f"it causes {gradients}"
    return f"not in 8 bits: {said}"
