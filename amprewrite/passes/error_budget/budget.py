"""The planner within a tolerance that a framework receives; it imports no passes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from amprewrite.ir import ProgramGraph
from amprewrite.passes.cost.cost import Objective
from amprewrite.passes.error_budget.measured_search import MEASURED, Goal, plan_within
from amprewrite.passes.error_budget.probe_selection import find_probes
from amprewrite.passes.pipeline import Prepared, Setting, make_plan, prepare
from amprewrite.plan import Plan
from amprewrite.plan.bounds import AUTOCAST, Tolerance
from amprewrite.plan.sensitivity import Measurements, Probes
from amprewrite.policy import Matcher


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
