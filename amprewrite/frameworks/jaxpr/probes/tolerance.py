"""Plan within a tolerance: JAX sensitivities, and measurements of candidates."""

# JAX's own types are partial: a type checker does not know its functions' results.
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.base import Budget
from amprewrite.frameworks.jaxpr.capture.trace import as_array, check_values
from amprewrite.frameworks.jaxpr.compat import private
from amprewrite.frameworks.jaxpr.compat.untyped import jax, jnp
from amprewrite.frameworks.jaxpr.interpret.interpreter import Writer
from amprewrite.frameworks.jaxpr.interpret.pipeline import Prepared
from amprewrite.frameworks.jaxpr.probes.full_precision import Exact, Result, Sample
from amprewrite.frameworks.jaxpr.probes.loop_ends import PATIENCE, ending
from amprewrite.frameworks.jaxpr.probes.reference_dtypes import is_inexact
from amprewrite.frameworks.jaxpr.probes.runner import to_array
from amprewrite.frameworks.jaxpr.probes.sensitivity import (
    check_finite,
    measure_sensitivity,
    watch,
)
from amprewrite.frameworks.jaxpr.program.ops import dtype_name
from amprewrite.frameworks.jaxpr.program.program import Program
from amprewrite.ir import ProgramGraph
from amprewrite.measure.norms import norms_of
from amprewrite.measure.runs import Run
from amprewrite.plan import Decision, Plan
from amprewrite.plan.sensitivity import Measurements, Sensitivity

REUSED = (
    "planned for other types of arguments by the errors measured on the first ones: "
    "its own error was predicted, not measured"
)
"""Warning of a plan for a signature that was not measured."""

OPTIONS = {"xla_allow_excess_precision": False}
"""Compiler options that keep the plan's roundings in fused kernels."""

Build = Callable[[Plan], Prepared]
"""Function from a plan to a runnable program."""


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
        return self.excess * (plan.predicted_error or 0.0) if found is None else found

    def is_of(self, graph: ProgramGraph) -> bool:
        """Return whether ``graph`` is this program, possibly with other extents."""
        return _shape_free(graph) == _shape_free(self.graph)


def _shape_free(graph: ProgramGraph) -> list[Any]:
    return [
        (op.name, op.native, op.operands, op.results, op.region, op.dtype_argument)
        for op in graph.ops
    ]


class Tolerant:
    """Planner of the programs of one function within a tolerance.

    A program is measured on its first arguments; the same program for arguments of
    other shapes is planned by these measurements.
    """

    def __init__(self, budget: Budget, captured: str) -> None:
        """Store the tolerance; nothing is measured yet.

        Args:
            budget: The tolerance, with its planner.
            captured: Description of the capture, for plans.
        """
        self.budget, self.captured = budget, captured
        self.known: list[Known] = []

    def plan(self, sample: Sample, build: Build) -> Plan:
        """Return the cheapest plan found within the tolerance.

        Args:
            sample: The program and the arguments.
            build: Makes a plan runnable.

        Raises:
            ToleranceError: No plan is within it, or the function's outputs are not
                finite.
            UnsupportedError: An op cannot be differentiated, no output is a float, or
                the arguments have no values.
        """
        known = next((k for k in self.known if k.is_of(sample.graph)), None)
        if known is not None:
            plan = self._plan(known, known.error)
            return plan.with_warnings(REUSED)
        check_values("tolerance", sample.inputs)
        if any(map(private.is_tracer, _values(sample))):
            msg = (
                "tolerance needs arguments with values, to measure on, and these are "
                "traced: convert with args= outside of jit, grad and vmap, or call "
                "the converted function once on arrays of these types before"
            )
            raise UnsupportedError(msg)
        with private.evaluated_now():
            return self._measured(sample, build)

    def _measured(self, sample: Sample, build: Build) -> Plan:
        graph, errors = sample.graph, dict[tuple[Decision, ...], float]()

        def exact(program: Program, inputs: list[Any]) -> list[Any]:
            runner = Exact(program)
            return runner.program(runner.wide.inputs(inputs))

        def run(plan: Plan) -> Run:
            made, handlers = build(plan), ending(watched.iterations)

            def planned(program: Program, inputs: list[Any]) -> list[Any]:
                context = replace(made, program=program)
                return Writer(context, handlers).program(inputs)

            return _run(sample, planned)

        reference = _run(sample, exact)
        bounds = self.budget.tolerance
        named = bounds if isinstance(bounds, Mapping) else reference.outputs
        check_finite(sample, reference, named)
        probes = self.budget.probes(graph, keep_parameter_dtype=True)
        watched = watch(sample, probes)
        endless = (
            f" (a loop that turns over {PATIENCE} times as often as in full precision "
            f"counts as one that never ends)"
        )
        norms = norms_of(
            self.budget.tolerance,
            reference,
            lambda: run(
                self.budget.promoted(
                    graph, keep_parameter_dtype=True, captured=self.captured
                )
            ),
            "placement 'promote'" + (endless if watched.iterations else ""),
        )
        found = measure_sensitivity(sample, probes, norms.factors, watched)

        def measure(plan: Plan) -> float:
            errors[plan.decisions] = norms.error(run(plan), reference)
            return errors[plan.decisions]

        known = Known(graph, found, norms.target)
        plan = self._plan(known, measure)
        known = replace(known, errors=errors)
        if plan.predicted_error:
            excess = errors[plan.decisions] / plan.predicted_error
            known = replace(known, excess=excess)
        self.known.append(known)
        return plan

    def _plan(self, known: Known, measure: Callable[[Plan], float]) -> Plan:
        return self.budget.plan(
            Measurements(
                graph=known.graph,
                training=True,  # arrays keep their dtypes
                captured=self.captured,
                sensitivity=known.sensitivity,
                target=known.target,
                measure=measure,
            )
        )


def sample_of(
    program: Program, graph: ProgramGraph, arrays: Iterable[Any], result: Result
) -> Sample:
    """Return a program with the arrays of a call, to be measured."""
    inputs = [x if isinstance(x, jax.Array) else as_array(x) for x in arrays]
    return Sample(program, graph, inputs, result)


def _values(sample: Sample) -> list[Any]:
    return [*sample.inputs, *sample.program.constants.values()]


def _run(sample: Sample, function: Callable[[Program, list[Any]], list[Any]]) -> Run:
    """Run a program, compiled, with the roundings of its plan."""
    names: list[str] = []

    def named(inputs: list[Any], constants: Mapping[str, Any]) -> list[Any]:
        found = sample.named(function(sample.on(constants), inputs))
        names[:] = found
        return [jnp.asarray(value) for value in found.values()]

    compiled = jax.jit(named, compiler_options=OPTIONS)
    made = compiled(list(sample.inputs), dict(sample.program.constants))
    pairs = zip(names, made, strict=True)
    floats = {name: x for name, x in pairs if is_inexact(dtype_name(x))}
    return Run({name: to_array(value) for name, value in floats.items()})
