"""The planner within a tolerance that a framework receives; it imports no passes."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from amprewrite.ir import ProgramGraph
from amprewrite.passes.analysis.classify import classify
from amprewrite.passes.analysis.values import extreme_values
from amprewrite.passes.cost.cost import Objective, counted_errors
from amprewrite.passes.error_budget.measured_search import (
    MEASURED,
    Goal,
    Proposals,
    plan_within,
)
from amprewrite.passes.pipeline import Prepared, Setting, make_plan, prepare, situate
from amprewrite.passes.placement.constraints import find_freedom
from amprewrite.passes.placement.contractions import contract_formats
from amprewrite.plan import Plan
from amprewrite.plan.bounds import AUTOCAST, Point, Tolerance
from amprewrite.plan.sensitivity import EightBits, Measurements, Probes, factors_of
from amprewrite.policy import Matcher, OpClass


@dataclass(frozen=True)
class Budget:
    """Planner within a tolerance.

    Attributes:
        tolerance: The tolerance that the user asked for.
        matcher: Returns a fresh matcher, which records the rules that were used.
        objective: Prices.
        substitutes: Whether the error of placement ``promote`` is the bound where the
            model does not run under torch.autocast: the user did not ask for that.
    """

    tolerance: Tolerance
    matcher: Callable[[], Matcher]
    objective: Objective
    substitutes: bool = False

    @property
    def bounds_gradients(self) -> bool:
        """Whether the tolerance bounds gradients, too, where a model is trained.

        It does under a policy with 8-bit formats, unless it names single outputs.
        """
        named = isinstance(self.tolerance, Mapping)
        return bool(self.matcher().policy.contract) and not named

    def probes(self, graph: ProgramGraph, *, keep_parameter_dtype: bool) -> Probes:
        """Return the roundings to measure; see :func:`find_probes`."""
        return find_probes(
            graph, self.matcher(), keep_parameter_dtype=keep_parameter_dtype
        )

    def promoted(
        self, graph: ProgramGraph, *, keep_parameter_dtype: bool, captured: str
    ) -> Plan:
        """Return the plan of placement ``promote``; see :func:`make_plan`."""
        setting = Setting("promote", keep_parameter_dtype, captured, self.objective)
        return make_plan(graph, self.matcher(), setting)

    def remembered(
        self, graph: ProgramGraph, *, keep_parameter_dtype: bool
    ) -> Plan | None:
        """Return None: a plan is quick enough to be made again."""
        del graph, keep_parameter_dtype

    def plan(self, measured: Measurements) -> Plan:
        """Return the cheapest plan found within the tolerance, recorded in the plan.

        Raises:
            ToleranceError: No plan keeps it.
        """
        return self.recorded(plan_within(self.goal(measured)), measured)

    def recorded(self, plan: Plan, measured: Measurements) -> Plan:
        """Return a plan with the tolerance that it was made for."""
        if isinstance(self.tolerance, Mapping):
            return replace(plan, tolerances=tuple(self.tolerance.items()))
        return replace(plan, tolerance=measured.target)

    def goal(self, measured: Measurements) -> Goal:
        """Return the goal of the search by :meth:`plan`."""
        at_prices = self._prepared("optimal", measured).plan

        def others() -> list[Plan]:
            names = ("promote", "paint")
            return [self.placed(name, measured) for name in names]

        # The baseline is measured on the same inputs: no room is needed for others.
        share = 1.0 if self.tolerance == AUTOCAST else MEASURED
        return Goal(measured, at_prices, self.objective.model, share, others)

    def placed(self, placement: str, measured: Measurements) -> Plan:
        """Return the plan of a placement."""
        return self._prepared(placement, measured).plan(self.objective)

    def _prepared(self, placement: str, measured: Measurements) -> Prepared:
        setting = Setting(placement, measured.training, measured.captured)
        return prepare(measured.graph, self.matcher(), setting)


# Select the roundings to measure, and the cost of one that must not happen.

ROUNDING = (OpClass.ALLOW, OpClass.ACCUMULATE, OpClass.PROMOTE)
"""Classes of ops that round their result; follow ops only pass values on."""


def find_probes(
    graph: ProgramGraph, matcher: Matcher, *, keep_parameter_dtype: bool
) -> Probes:
    """Return the roundings that placement ``optimal`` may choose for ``graph``.

    A storage that is written in place has no probe: its values change over time, and a
    contraction that would round it to 8 bits is not predicted.

    Args:
        graph: The program.
        matcher: Policy and overrides; the policy has a low dtype.
        keep_parameter_dtype: Whether parameters keep their dtype.
    """
    policy = matcher.policy
    classes = classify(graph, matcher)
    situation = situate(graph, policy, classes, ())
    pinned = find_freedom(situation, keep_parameter_dtype=keep_parameter_dtype).pinned
    stored: set[str] = set()
    read: set[tuple[str, str]] = set()
    for op in graph.ops:
        free, names = counted_errors(situation, op)
        if not free or op.name in pinned:
            continue
        op_class = classes[op.name].op_class
        if op_class in ROUNDING or op.name in situation.followed:
            stored.update(op.results)
        read.update((name, op.name) for name in names)

    def is_constant(name: str) -> bool:
        return graph.storage(name) not in graph.written

    def is_probed(name: str) -> bool:
        return graph.is_dtype(name, policy.full) and is_constant(name)

    eight = {
        EightBits(op, found.forward, found.scaling): factors_of(graph.op_by_name[op])
        for op, found in contract_formats(graph, matcher, classes).items()
    }
    known = {key: names for key, names in eight.items() if all(map(is_constant, names))}
    return Probes(
        low=policy.low,
        full=policy.full,
        stored=frozenset(filter(is_probed, stored - situation.weights.keys())),
        read=frozenset((name, op) for name, op in read if is_probed(name)),
        saturated=frozenset(extreme_values(graph, classes, policy.low)),
        weights=frozenset(situation.weights),
        eight={k: names if k.format else frozenset() for k, names in known.items()},
        unpredicted=frozenset(eight.keys() - known.keys()),
    )


# Pareto front of error and bytes: the plans that are cheapest for some error.

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
