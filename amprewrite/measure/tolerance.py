"""Plans within a tolerance: sensitivities, and measurements of the candidates."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from amprewrite.ir import ProgramGraph
from amprewrite.measure.gradient_errors import (
    measure_gradients,
    relative_change,
    without_eight_bits,
)
from amprewrite.measure.norms import norms_of
from amprewrite.measure.runs import Array, Run
from amprewrite.plan import Decision, Plan
from amprewrite.plan.bounds import AUTOCAST
from amprewrite.plan.sensitivity import Measure, Measurements, Probes, Sensitivity


class Budget(Protocol):
    """Planner within a tolerance, from measurements by the framework."""

    @property
    def tolerance(self) -> "float | str | Mapping[str, float]":
        """Bound on the relative L2 error of all float outputs, or of each by path."""
        ...

    @property
    def bounds_gradients(self) -> bool:
        """Whether it bounds the gradients of parameters, too, in training."""
        ...

    def probes(self, graph: ProgramGraph, *, keep_parameter_dtype: bool) -> Probes:
        """Return the roundings to measure."""
        ...

    def promoted(
        self, graph: ProgramGraph, *, keep_parameter_dtype: bool, captured: str
    ) -> Plan:
        """Return the plan of placement ``promote`` for ``graph``."""
        ...

    def plan(self, measured: Measurements) -> Plan:
        """Return the cheapest plan found within the target."""
        ...


class Subject(Protocol):
    """Program of a framework, on the arguments that it is measured on."""

    @property
    def graph(self) -> ProgramGraph:
        """The program."""
        ...

    @property
    def trains(self) -> bool:
        """Whether parameters keep their dtype, to be trained."""
        ...

    @property
    def captured(self) -> str:
        """Description of the capture, for plans."""
        ...

    @property
    def is_random(self) -> bool:
        """Whether a run drew random numbers: its error is no measurement."""
        ...

    @property
    def baseline_name(self) -> str:
        """Name of the baseline in an error, after the reference has run."""
        ...

    def reference(self, probes: Probes, /) -> Run:
        """Run the program in full precision; nothing is run before.

        Args:
            probes: The roundings to measure.
        """
        ...

    def baseline(self, probes: Probes, /) -> Run:
        """Run the program as the tolerance ``"autocast"`` means."""
        ...

    def sensitivity(
        self, probes: Probes, factors: Mapping[str, float], /
    ) -> Sensitivity:
        """Return the error of each rounding.

        Args:
            probes: The roundings to measure.
            factors: Factor on the error of each output.
        """
        ...

    def run(self, plan: Plan, /) -> Run:
        """Run the program by a plan."""
        ...

    @property
    def differentiates(self) -> bool:
        """Whether runs have gradients, which the tolerance then bounds, too."""
        ...

    def one_by_one(self, plan: Plan, /) -> Iterator[tuple[str, Mapping[str, Array]]]:
        """Yield the gradients by a plan with one contraction in 8 bits at a time.

        The name of the op is with them; the first one is empty, for none in 8 bits.
        """
        ...


@dataclass(frozen=True)
class Known:
    """Measurements of one program.

    Attributes:
        graph: The program.
        sensitivity: The error of each rounding.
        target: Bound on the error.
        errors: Measured error of each plan that was tried, by its decisions.
        excess: Measured over predicted error of the chosen plan.
    """

    graph: ProgramGraph
    sensitivity: Sensitivity
    target: float
    errors: Mapping[tuple[Decision, ...], float] = field(
        default_factory=dict[tuple[Decision, ...], float]
    )
    excess: float = 1.0

    def error(self, plan: Plan) -> float:
        """Return the error of a plan, estimated if it was not measured."""
        found = self.errors.get(plan.decisions)
        return self.excess * self.sensitivity.larger(plan) if found is None else found

    def is_of(self, graph: ProgramGraph) -> bool:
        """Return whether ``graph`` is this program, possibly with other extents."""
        return _shape_free(graph) == _shape_free(self.graph)


def _shape_free(graph: ProgramGraph) -> list[tuple[object, ...]]:
    return [
        (op.name, op.native, op.operands, op.results, op.region, op.dtype_argument)
        for op in graph.ops
    ]


def plan_within(budget: Budget, subject: Subject) -> tuple[Plan, Known]:
    """Return the cheapest plan found within a tolerance, and the measurements.

    Raises:
        ToleranceError: No plan is within it, or it bounds nothing.
    """
    graph, trains = subject.graph, subject.trains
    probes = budget.probes(graph, keep_parameter_dtype=trains)
    reference = subject.reference(probes)
    baseline: list[Run] = []

    def bound() -> Run:
        baseline.append(subject.baseline(probes))
        return baseline[0]

    norms = norms_of(budget.tolerance, reference, bound, subject.baseline_name)
    errors: dict[tuple[Decision, ...], float] = {}

    def measure(plan: Plan) -> float | None:
        if subject.is_random:
            return None
        found = subject.run(plan)
        error = norms.error(found, reference)
        if gradients is not None:
            unit = gradients.unit
            error = max(error, unit * relative_change(found, reference, gradients))
        errors[plan.decisions] = error
        return error

    sensitivity = subject.sensitivity(probes, norms.factors).without(probes.unpredicted)
    gradients = None
    has_gradients = any(array.any() for array in reference.gradients.values())
    if subject.differentiates and has_gradients and not subject.is_random:
        how = subject.captured
        base = budget.promoted(graph, keep_parameter_dtype=trains, captured=how)
        alone = subject.one_by_one(base)
        low = sensitivity.made(without_eight_bits(base), graph)
        gradients = measure_gradients(reference, alone, sum(low.values()))
        if budget.tolerance == AUTOCAST:
            found = relative_change(baseline[0], reference, gradients)
            gradients = replace(gradients, unit=norms.target / found if found else 1.0)
    sensitivity = replace(sensitivity, gradients=gradients)
    known = Known(graph, sensitivity, norms.target)
    plan = plan_known(budget, known, measure, subject.captured, trains=trains)
    known = replace(known, errors=errors)
    predicted = sensitivity.larger(plan)
    if predicted and plan.decisions in errors:
        known = replace(known, excess=errors[plan.decisions] / predicted)
    return plan, known


def plan_known(
    budget: Budget, known: Known, measure: Measure, captured: str, *, trains: bool
) -> Plan:
    """Return the cheapest plan found of a program with known sensitivities.

    Args:
        budget: The tolerance, with its planner.
        known: Measurements of the program.
        measure: Function from a plan to its error.
        captured: Description of the capture, for the plan.
        trains: Whether parameters keep their dtype, to be trained.
    """
    return budget.plan(
        Measurements(
            graph=known.graph,
            training=trains,
            captured=captured,
            sensitivity=known.sensitivity,
            target=known.target,
            measure=measure,
        )
    )
