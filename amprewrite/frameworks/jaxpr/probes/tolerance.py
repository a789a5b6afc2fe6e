"""Plan within a tolerance: JAX sensitivities, and measurements of candidates."""

# JAX's own types are partial: a type checker does not know its functions' results.
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.jaxpr.capture.trace import as_array, check_values
from amprewrite.frameworks.jaxpr.compat import tracers
from amprewrite.frameworks.jaxpr.compat.untyped import jax, jnp
from amprewrite.frameworks.jaxpr.interpret.interpreter import Writer
from amprewrite.frameworks.jaxpr.interpret.pipeline import Prepared
from amprewrite.frameworks.jaxpr.probes.full_precision import Exact, Result, Sample
from amprewrite.frameworks.jaxpr.probes.loop_ends import PATIENCE, ending
from amprewrite.frameworks.jaxpr.probes.reference_dtypes import is_inexact
from amprewrite.frameworks.jaxpr.probes.runner import to_array
from amprewrite.frameworks.jaxpr.probes.sensitivity import (
    Watched,
    check_finite,
    measure_sensitivity,
    watch,
)
from amprewrite.frameworks.jaxpr.program.ops import dtype_name
from amprewrite.frameworks.jaxpr.program.program import Program
from amprewrite.ir import ProgramGraph
from amprewrite.measure.runs import Run
from amprewrite.measure.tolerance import Budget, Known, plan_known, plan_within
from amprewrite.plan import Plan
from amprewrite.plan.sensitivity import Probes, Sensitivity

REUSED = (
    "planned for other types of arguments by the errors measured on the first ones: "
    "its own error was predicted, not measured"
)
"""Warning of a plan for a signature that was not measured."""

OPTIONS = {"xla_allow_excess_precision": False}
"""Compiler options that keep the plan's roundings in fused kernels."""

Build = Callable[[Plan], Prepared]
"""Function from a plan to a runnable program."""


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
            how = self.captured
            plan = plan_known(self.budget, known, known.error, how, trains=True)
            return plan.with_warnings(REUSED)
        check_values("tolerance", sample.inputs)
        if any(map(tracers.is_tracer, _values(sample))):
            msg = (
                "tolerance needs arguments with values, to measure on, and these are "
                "traced: convert with args= outside of jit, grad and vmap, or call "
                "the converted function once on arrays of these types before"
            )
            raise UnsupportedError(msg)
        with tracers.evaluated_now():
            subject = _Subject(sample, build, self.budget, self.captured)
            plan, known = plan_within(self.budget, subject)
            self.known.append(known)
            return plan


class _Subject:
    """Program of a function on the arrays of a call; arrays keep their dtypes."""

    trains, is_random = True, False

    def __init__(self, sample: Sample, build: Build, budget: Budget, how: str) -> None:
        """Store the program; nothing is run yet."""
        self.sample, self.build, self.budget, self.captured = sample, build, budget, how
        self.watched = Watched({}, {})

    @property
    def graph(self) -> ProgramGraph:
        return self.sample.graph

    @property
    def baseline_name(self) -> str:
        if not self.watched.iterations:
            return "placement 'promote'"
        return (
            f"placement 'promote' (a loop that turns over {PATIENCE} times as often as "
            f"in full precision counts as one that never ends)"
        )

    def reference(self, probes: Probes) -> Run:
        def exact(program: Program, inputs: list[Any]) -> list[Any]:
            runner = Exact(program)
            return runner.program(runner.wide.inputs(inputs))

        found, bounds = _run(self.sample, exact), self.budget.tolerance
        named = bounds if isinstance(bounds, Mapping) else found.outputs
        check_finite(self.sample, found, named)
        self.watched = watch(self.sample, probes)
        return found

    def baseline(self, _: Probes) -> Run:
        how = self.captured
        make = self.budget.promoted
        return self.run(make(self.graph, keep_parameter_dtype=True, captured=how))

    def sensitivity(self, probes: Probes, factors: Mapping[str, float]) -> Sensitivity:
        return measure_sensitivity(self.sample, probes, factors, self.watched)

    def run(self, plan: Plan) -> Run:
        made, handlers = self.build(plan), ending(self.watched.iterations)

        def planned(program: Program, inputs: list[Any]) -> list[Any]:
            context = replace(made, program=program)
            return Writer(context, handlers).program(inputs)

        return _run(self.sample, planned)


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
