"""Plans within a tolerance: sensitivities, and measurements of the candidates.

The error of all outputs is one number (:class:`Norms`), with a bound. In training with
8 bits the error of the gradients is bounded too, from runs with one contraction in 8
bits at a time.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from math import inf, sqrt
from typing import Protocol

import numpy as np

from amprewrite.errors import ToleranceError
from amprewrite.ir import ProgramGraph
from amprewrite.measure.runs import Array, Run
from amprewrite.measure.timing import ran_out_of_memory
from amprewrite.plan import Decision, Plan
from amprewrite.plan.bounds import AUTOCAST
from amprewrite.plan.facts import Gradients
from amprewrite.plan.sensitivity import (
    Clock,
    Measure,
    Measurements,
    Probes,
    Sensitivity,
)


@dataclass(frozen=True)
class Norms:
    """Norm of the errors of several outputs.

    Attributes:
        factors: Factor on the L2 error of each bounded output, by path.
        jointly: Whether the errors are combined as a root of squares; else as a
            maximum.
        target: Bound on the norm.
    """

    factors: Mapping[str, float]
    jointly: bool
    target: float

    def error(self, found: Run, reference: Run) -> float:
        """Return the norm for one run; infinite if an output is not finite."""
        errors = [
            factor * _norm(found.outputs[path], reference.outputs[path])
            for path, factor in self.factors.items()
        ]
        if not np.isfinite(errors).all():
            return inf
        return sqrt(sum(e * e for e in errors)) if self.jointly else max(errors)


def norms_of(
    tolerance: float | str | Mapping[str, float],
    reference: Run,
    baseline: Callable[[], Run],
    called: str,
) -> Norms:
    """Return the norm of the errors, and the bound on it.

    Args:
        tolerance: The user's tolerance: a bound on all float outputs together, on each
            by path, or ``"autocast"``.
        reference: The run in full precision.
        baseline: Runs the baseline that ``"autocast"`` refers to.
        called: Name of that baseline in an error.

    Raises:
        ToleranceError: The tolerance bounds nothing here.
    """
    sizes = {path: _norm(array) for path, array in reference.outputs.items()}
    if isinstance(tolerance, Mapping):
        return _separate(tolerance, sizes)
    total = sqrt(sum(size * size for size in sizes.values()))
    if total == 0.0:  # no float output, or zeros alone: said where it runs
        total = 1.0
    # One that is not finite has no size; a run that looks for its op names it.
    factors = dict.fromkeys(sizes, 1.0 / total if np.isfinite(total) else 1.0)
    if not isinstance(tolerance, str):
        return Norms(factors, jointly=True, target=tolerance)
    if not sizes or not np.isfinite(total):  # as above: said where it runs
        return Norms(factors, jointly=True, target=inf)
    target = Norms(factors, jointly=True, target=0.0).error(baseline(), reference)
    if not 0.0 < target < inf:
        msg = (
            f"tolerance='autocast': the error of {called} on these arguments is "
            f"{target:.3g}, which bounds nothing; pass a number such as 1e-3"
        )
        raise ToleranceError(msg)
    return Norms(factors, jointly=True, target=target)


def _separate(bounds: Mapping[str, float], sizes: Mapping[str, float]) -> Norms:
    """Return norms in units of the smallest bound.

    Raises:
        ToleranceError: A bound is zero, or its path is no float output.
    """
    strictest = min(bounds.values())
    factors: dict[str, float] = {}
    for path, bound in bounds.items():
        if path not in sizes:
            known = ", ".join(map(repr, sizes)) or "none"
            msg = (
                f"tolerance[{path!r}]: there is no such float output; there are {known}"
            )
            raise ToleranceError(msg)
        if sizes[path] == 0.0:
            msg = (
                f"tolerance[{path!r}]: this output is zero, so that no error is "
                f"relative to it; leave it out, or give other arguments"
            )
            raise ToleranceError(msg)
        factors[path] = strictest / bound / sizes[path]
    return Norms(factors, jointly=False, target=strictest)


def _norm(array: Array, base: Array | float = 0.0) -> float:
    with np.errstate(invalid="ignore", over="ignore"):
        return float(np.linalg.norm(array - base))


Named = Mapping[str, Array]
"""Gradients by the names of the parameters."""


NO_FORMATS: Mapping[str, str] = {
    "forward": "",
    "backward": "",
    "scaling": "",
    "kernel": "",
}
"""Fields of a decision that rounds nothing to 8 bits."""


def without_eight_bits(plan: Plan, kept: str = "") -> Plan:
    """Return ``plan`` without 8-bit formats, except for those of the op ``kept``."""
    decisions = tuple(
        d if d.op == kept else replace(d, **NO_FORMATS) for d in plan.decisions
    )
    return replace(plan, decisions=decisions)


def measure_gradients(
    reference: Run, alone: Iterable[tuple[str, Named]], low_outputs: float
) -> Gradients:
    """Return the errors of the gradients.

    Args:
        reference: A run in full precision, with gradients.
        alone: Gradients with one contraction at a time in 8 bits, with its op; the
            first ones are without any.
        low_outputs: Predicted squared error of the outputs without any.

    Raises:
        ToleranceError: A gradient is not finite in full precision.
    """
    wanted, rest = reference.gradients, iter(alone)
    broken = [name for name, array in wanted.items() if not np.isfinite(array).all()]
    if broken:
        msg = (
            f"the gradient of {broken[0]} is not finite in full precision already; "
            f"give arguments for which it is, or bound outputs alone, without training"
        )
        raise ToleranceError(msg)
    _, base = next(rest)
    return Gradients(
        sizes=_changes(wanted, {}),
        counts={name: array.size for name, array in wanted.items()},
        eight={op: _changes(found, base) for op, found in rest},
        low=_changes(base, wanted),
        low_outputs=low_outputs,
    )


def relative_change(found: Run, reference: Run, gradients: Gradients) -> float:
    """Return the relative L2 error of all gradients of a run together.

    It is infinite if one of them is not finite.
    """
    changes = _changes(found.gradients, reference.gradients)
    if not np.isfinite(list(changes.values())).all():
        return inf
    return gradients.relative(changes).error


def _changes(found: Named, base: Named) -> dict[str, float]:
    return {name: _norm(array, base.get(name, 0.0)) for name, array in found.items()}


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

    @property
    def substitutes(self) -> bool:
        """Whether placement ``promote`` is the baseline where another one fails."""
        ...

    def probes(self, graph: ProgramGraph, *, keep_parameter_dtype: bool) -> Probes:
        """Return the roundings to measure."""
        ...

    def promoted(
        self, graph: ProgramGraph, *, keep_parameter_dtype: bool, captured: str
    ) -> Plan:
        """Return the plan of placement ``promote`` for ``graph``."""
        ...

    def remembered(
        self, graph: ProgramGraph, *, keep_parameter_dtype: bool
    ) -> Plan | None:
        """Return a plan of an earlier search, to be measured again; None without."""
        ...

    def plan(self, measured: Measurements) -> Plan:
        """Return the best plan found within the target."""
        ...


class Subject(Protocol):
    """Program of a framework, on the arguments that it is measured on.

    Attributes:
        graph: The program.
        trains: Whether parameters keep their dtype, to be trained.
        captured: Description of the capture, for plans.
        differentiates: Whether runs have gradients, which the tolerance then bounds,
            too.
    """

    graph: ProgramGraph
    trains: bool
    captured: str
    differentiates: bool

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

    def seconds(self, plans: Mapping[str, Plan], /) -> Mapping[str, float]:
        """Return the median time of the program by each plan, run as it will be."""
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
        timed: The plan, if it was chosen by timing: other extents follow it.
    """

    graph: ProgramGraph
    sensitivity: Sensitivity
    target: float
    errors: Mapping[tuple[Decision, ...], float] = field(
        default_factory=dict[tuple[Decision, ...], float]
    )
    excess: float = 1.0
    timed: Plan | None = None

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
    """Return the best plan found within a tolerance, and the measurements.

    Raises:
        ToleranceError: No plan is within it, or it bounds nothing.
    """
    graph, trains = subject.graph, subject.trains
    probes = budget.probes(graph, keep_parameter_dtype=trains)
    reference = subject.reference(probes)
    baseline = cache(partial(_baseline, budget, subject, probes))
    norms = norms_of(budget.tolerance, reference, baseline, subject.baseline_name)
    meter = _Meter(subject, reference, norms)
    timed = budget.remembered(graph, keep_parameter_dtype=trains)
    if timed is not None and not subject.differentiates:
        error = meter.measure(timed)
        if error is None or error <= norms.target:
            nothing, errors = Sensitivity({}, {}, 0), meter.errors
            return timed, Known(graph, nothing, norms.target, errors, timed=timed)
    sensitivity = subject.sensitivity(probes, norms.factors).without(probes.unpredicted)
    meter.gradients = _gradients(budget, subject, sensitivity, reference)
    if meter.gradients is not None and budget.tolerance == AUTOCAST:
        found = relative_change(baseline(), reference, meter.gradients)
        unit = norms.target / found if found else 1.0
        meter.gradients = replace(meter.gradients, unit=unit)
    sensitivity = replace(sensitivity, gradients=meter.gradients)
    known, clock = Known(graph, sensitivity, norms.target), partial(_seconds, subject)
    how = subject.captured
    plan = plan_known(budget, known, meter.measure, how, clock, trains=trains)
    known = replace(known, errors=meter.errors, timed=plan if plan.timed else None)
    predicted = sensitivity.larger(plan)
    if predicted and plan.decisions in meter.errors:
        known = replace(known, excess=meter.errors[plan.decisions] / predicted)
    return plan, known


def _baseline(budget: Budget, subject: Subject, probes: Probes) -> Run:
    """Return the run with the error that bounds others; see ``Budget.substitutes``."""
    try:
        return subject.baseline(probes)
    except ToleranceError:
        if not budget.substitutes:
            raise
    keep, how = subject.trains, subject.captured
    made = budget.promoted(subject.graph, keep_parameter_dtype=keep, captured=how)
    return subject.run(made)


@dataclass
class _Meter:
    """Measures the errors of plans, the larger one of outputs and of gradients.

    Attributes:
        subject: The program.
        reference: Its run in full precision.
        norms: Norm of the errors of the outputs.
        gradients: Errors of gradients by op; None where they are not bounded.
        errors: Measured errors, by the decisions of a plan.
    """

    subject: Subject
    reference: Run
    norms: Norms
    gradients: Gradients | None = None
    errors: dict[tuple[Decision, ...], float] = field(
        default_factory=dict[tuple[Decision, ...], float]
    )

    def measure(self, plan: Plan) -> float | None:
        """Return the error of a plan; None of a program that draws random numbers."""
        if self.subject.is_random:
            return None
        found = self.subject.run(plan)
        error = self.norms.error(found, self.reference)
        if self.gradients is not None:
            change = relative_change(found, self.reference, self.gradients)
            error = max(error, self.gradients.unit * change)
        self.errors[plan.decisions] = error
        return error


def _gradients(
    budget: Budget, subject: Subject, sensitivity: Sensitivity, reference: Run
) -> Gradients | None:
    """Return the errors of gradients by op; None where they are not bounded."""
    has_gradients = any(array.any() for array in reference.gradients.values())
    if not subject.differentiates or not has_gradients or subject.is_random:
        return None
    graph, how = subject.graph, subject.captured
    base = budget.promoted(graph, keep_parameter_dtype=subject.trains, captured=how)
    alone = subject.one_by_one(base)
    low = sensitivity.made(without_eight_bits(base), graph)
    return measure_gradients(reference, alone, sum(low.values()))


def _seconds(subject: Subject, plans: Mapping[str, Plan]) -> Mapping[str, float] | None:
    """Return the time of each plan; None if memory did not suffice."""
    try:
        return subject.seconds(plans)
    except (MemoryError, RuntimeError) as error:
        if not ran_out_of_memory(error):
            raise
        return None


def plan_known(
    budget: Budget,
    known: Known,
    measure: Measure,
    captured: str,
    clock: Clock | None = None,
    *,
    trains: bool,
) -> Plan:
    """Return the best plan found of a program with known sensitivities.

    Args:
        budget: The tolerance, with its planner.
        known: Measurements of the program.
        measure: Function from a plan to its error.
        captured: Description of the capture, for the plan.
        clock: Function that times plans; None where nothing can be run.
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
            clock=clock,
        )
    )
