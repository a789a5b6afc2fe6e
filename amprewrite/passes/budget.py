"""What a framework is handed to plan within a tolerance; it knows no passes."""

from collections.abc import Callable
from dataclasses import dataclass

from amprewrite.ir import ProgramGraph
from amprewrite.passes.cost import Objective
from amprewrite.passes.pipeline import Setting, make_plan
from amprewrite.passes.sensitivity import find_probes
from amprewrite.passes.tolerance import (
    AUTOCAST,
    MEASURED,
    Goal,
    Measure,
    Tolerance,
    plan_within,
)
from amprewrite.plan import Plan
from amprewrite.plan.sensitivity import Probes, Sensitivity
from amprewrite.policy import Matcher


@dataclass(frozen=True)
class Budget:
    """Plans within a tolerance.

    Attributes:
        tolerance: What the user asked for.
        matcher: Gives a fresh matcher, which remembers the rules that were used.
        objective: What things cost.
    """

    tolerance: Tolerance
    matcher: Callable[[], Matcher]
    objective: Objective

    def probes(self, graph: ProgramGraph, *, training: bool) -> Probes:
        """Return what may be rounded; see :func:`find_probes`."""
        return find_probes(graph, self.matcher(), training=training)

    def plan(  # a protocol between two sides, all by keyword
        self,
        graph: ProgramGraph,
        *,
        training: bool,
        captured: str,
        sensitivity: Sensitivity,
        target: float,
        measure: Measure,
    ) -> Plan:
        """Return the cheapest plan found that keeps a target.

        Args:
            graph: The program.
            training: Whether parameters keep their dtype, to be trained.
            captured: How the program was captured, for the plan.
            sensitivity: The error of each rounding.
            target: Largest relative L2 error of the outputs.
            measure: Gives that error for the program of a plan.

        Raises:
            ToleranceError: No plan keeps the target.
        """

        def plan_for(objective: Objective) -> Plan:
            setting = Setting("optimal", training, captured, objective)
            return make_plan(graph, self.matcher(), setting)

        model = self.objective.model
        # What is measured beside it has the same inputs: no room is needed for others.
        share = 1.0 if self.tolerance == AUTOCAST else MEASURED
        goal = Goal(graph, sensitivity, target, plan_for, measure, model, share)
        return plan_within(goal)
