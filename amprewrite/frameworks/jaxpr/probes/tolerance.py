"""Plan within a tolerance: JAX sensitivities, and measurements of candidates."""

# JAX's own types are partial: a type checker does not know its functions' results.
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from amprewrite.errors import UnsupportedError
from amprewrite.execute.sensitivity import no_gradients
from amprewrite.frameworks.jaxpr.capture.trace import as_array, check_values
from amprewrite.frameworks.jaxpr.compat import tracers
from amprewrite.frameworks.jaxpr.compat.untyped import jax
from amprewrite.frameworks.jaxpr.interpret.pipeline import Prepared
from amprewrite.frameworks.jaxpr.probes.full_precision import Exact, Result, Sample
from amprewrite.frameworks.jaxpr.probes.runner import (
    PATIENCE,
    EndingWriter,
    one_by_one,
    run_planned,
)
from amprewrite.frameworks.jaxpr.probes.sensitivity import (
    UNDIFFERENTIATED,
    Watched,
    check_finite,
    measure_sensitivity,
    watch,
)
from amprewrite.frameworks.jaxpr.program.program import Program
from amprewrite.ir import ProgramGraph
from amprewrite.measure.runs import Array, Run
from amprewrite.measure.timing import raced
from amprewrite.measure.tolerance import Budget, Known, plan_known, plan_within
from amprewrite.plan import Plan
from amprewrite.plan.sensitivity import Probes, Sensitivity

REUSED = (
    "planned for other types of arguments by the errors measured on the first ones: "
    "its own error was predicted, not measured"
)
"""Warning of a plan for a signature that was not measured."""

UNTIMED = (
    "follows the plan that was timed on the first arguments, which were of other types"
)
"""Warning of a plan for a signature that was not timed."""

SECONDS = 2.0
"""Approximate limit of the timing of all candidates, beside five rounds of each."""

Build = Callable[[Plan], Prepared]
"""Function from a plan to a runnable program."""


class Tolerant:
    """Planner of the programs of one function within a tolerance.

    A program is measured on its first arguments; the same program for arguments of
    other shapes is planned by these measurements.
    """

    def __init__(
        self,
        budget: Budget,
        captured: str,
        target: str = "compiled",
        *,
        trains: bool = False,
    ) -> None:
        """Store the tolerance; nothing is measured yet.

        Args:
            budget: The tolerance, with its planner.
            captured: Description of the capture, for plans.
            target: ``compiled``, or ``eager`` to time the program op by op.
            trains: Whether parameters will be trained, so that the tolerance may bound
                their gradients.
        """
        self.budget, self.captured = budget, captured
        self.compiled = target == "compiled"
        self.differentiates = trains and budget.bounds_gradients
        self.known: list[Known] = []

    def plan(
        self, sample: Sample, build: Build, trained: Mapping[int, str] | None = None
    ) -> Plan:
        """Return the cheapest plan found within the tolerance.

        Args:
            sample: The program and the arguments.
            build: Makes a plan runnable.
            trained: Names of the arrays that get gradients, by position.

        Raises:
            ToleranceError: No plan is within it, or the function's outputs are not
                finite.
            UnsupportedError: An op cannot be differentiated, no output is a float, or
                the arguments have no values.
        """
        known = next((k for k in self.known if k.is_of(sample.graph)), None)
        if known is not None and known.timed is not None:
            return known.timed.with_warnings(UNTIMED)
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
            derived = trained if trained and self.differentiates else {}
            subject = _Subject(sample, build, self, derived)
            plan, known = plan_within(self.budget, subject)
            self.known.append(known)
            return plan


class _Subject:
    """Program of a function on the arrays of a call; arrays keep their dtypes."""

    trains, is_random = True, False

    def __init__(
        self,
        sample: Sample,
        build: Build,
        planner: Tolerant,
        trained: Mapping[int, str],
    ) -> None:
        """Store the program; nothing is run yet."""
        self.sample, self.build = sample, build
        self.budget, self.captured = planner.budget, planner.captured
        self.compiled, self.trained = planner.compiled, trained
        self.graph, self.differentiates = sample.graph, bool(trained)
        self.watched = Watched({}, {})

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
            return runner(runner.inputs(inputs))

        try:
            found = run_planned(self.sample, exact, self.trained)
        except UNDIFFERENTIATED as error:
            if not self.trained:
                raise
            run_planned(self.sample, exact)  # its own mistakes
            raise no_gradients(error, "function", "leave training=None") from error
        bounds = self.budget.tolerance
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
        prepared, iterations = self.build(plan), self.watched.iterations

        def planned(program: Program, inputs: list[Any]) -> list[Any]:
            context = replace(prepared, program=program)
            return EndingWriter(context, iterations)(inputs)

        return run_planned(self.sample, planned, self.trained)

    def one_by_one(self, plan: Plan) -> Iterator[tuple[str, Mapping[str, Array]]]:
        return one_by_one(self.build(plan), self.sample, self.trained)

    def seconds(self, plans: Mapping[str, Plan]) -> Mapping[str, float]:
        given = list(self.sample.inputs), dict(self.sample.program.constants)

        def run_of(plan: Plan) -> Callable[[], Any]:
            made = self.build(plan)

            def planned(inputs: list[Any], constants: Mapping[str, Any]) -> list[Any]:
                return replace(made, program=self.sample.on(constants)).run(inputs)

            return partial(jax.jit(planned) if self.compiled else planned, *given)

        runs = {name: run_of(plan) for name, plan in plans.items()}
        return raced(runs, jax.block_until_ready, SECONDS)


def sample_of(
    program: Program, graph: ProgramGraph, arrays: Iterable[Any], result: Result
) -> Sample:
    """Return a program with the arrays of a call, to be measured."""
    inputs = [x if isinstance(x, jax.Array) else as_array(x) for x in arrays]
    return Sample(program, graph, inputs, result)


def _values(sample: Sample) -> list[Any]:
    return [*sample.inputs, *sample.program.constants.values()]
