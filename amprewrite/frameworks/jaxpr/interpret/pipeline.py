"""From a jaxpr to a runnable program: inline, read, plan."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import takewhile
from typing import Any

from amprewrite.dtypes import Processor
from amprewrite.frameworks.base import Planner
from amprewrite.frameworks.jaxpr.capture.cast_intent import Second
from amprewrite.frameworks.jaxpr.capture.complex_norms import (
    conjugated,
    find_complex_norms,
)
from amprewrite.frameworks.jaxpr.capture.promotion import take_out, tracing
from amprewrite.frameworks.jaxpr.compat.untyped import jax
from amprewrite.frameworks.jaxpr.interpret.interpreter import Planned, Writer
from amprewrite.frameworks.jaxpr.interpret.recompute import RecomputingWriter
from amprewrite.frameworks.jaxpr.program.inline import inline
from amprewrite.frameworks.jaxpr.program.program import Program
from amprewrite.frameworks.jaxpr.program.read import read
from amprewrite.ir import ProgramGraph
from amprewrite.ir.graph import ValueKind
from amprewrite.plan import Plan
from amprewrite.plan.validation.check import check_fits, check_ops

RULE = "a rule, traced when JAX called it"
"""Description, in a plan, of the capture of a custom rule."""

Held = Mapping[tuple[str, str], Mapping[str, bool]]
"""By (canonical name, source line): for each path, if an op there is held full."""


@dataclass(frozen=True)
class Prepared(Planned):
    """A program with its plan, which can be run.

    Attributes:
        promotes: Promotion system for the operands of custom rules; None for no
            promotion.
        departs: Whether the plan differs from the planner's own: it was given,
            measured, or follows another plan.
    """

    promotes: Processor | None = None
    departs: bool = False

    @cached_property
    def held_full(self) -> Held:
        """Ops that run in full by the plan, and low by the policy alone."""
        if not self.departs:
            return {}
        usual = self.planner(
            self.graph,
            keep_parameter_dtype=True,
            captured=RULE,
            differentiable=self.training,
        )
        found: dict[tuple[str, str], dict[str, bool]] = {}
        for op in self.graph.ops:
            precision = self.plan.by_op[op.name].precision
            low = usual.by_op[op.name].precision == usual.low
            paths = found.setdefault((op.canonical, op.source), {})
            held = precision == usual.full and low
            paths[op.path] = paths.get(op.path, False) or held
        return found

    def full_in(self, graph: ProgramGraph) -> Iterator[str]:
        """Yield the ops of a custom rule that are full because the function's are.

        A rule's recomputed and derived ops have the line and the canonical name of the
        op in the function, and the inner part of its path. If several ops of the
        function match, one that runs in full is enough.

        Args:
            graph: The rule.
        """
        for op in graph.ops:
            paths = self.held_full.get((op.canonical, op.source), {})
            alike = {path: _common_end(path, op.path) for path in paths}
            most = max(alike.values(), default=0)
            if any(paths[path] for path, length in alike.items() if length == most):
                yield op.name

    def run(self, inputs: Iterable[Any]) -> list[Any]:
        """Return the outputs on ``inputs``, arrays in the program's order."""
        writer = RecomputingWriter if self.plan.recompute else Writer
        return writer(self)(inputs)

    def converted(
        self,
        fun: Callable[..., Any],
        operands: Sequence[Any],
        tangents: Iterable[int] = (),
        exact: Iterable[int] = (),
    ) -> list[Any]:
        """Return the outputs of ``fun`` on arrays, converted by the same policy.

        Ops that the plan runs in full where the policy would not stay full.

        Args:
            fun: The function.
            operands: Arguments of the call.
            tangents: Positions of the operands that are tangents.
            exact: Positions of the outputs that make exact arguments, read after
                ``fun`` was traced.
        """
        with tracing(self.promotes):
            closed = jax.make_jaxpr(fun)(*operands)

        def full_in(graph: ProgramGraph) -> Iterator[str]:
            yield from self.full_in(graph)
            if not [*exact]:
                return
            whole = len(graph.outputs) == len(closed.jaxpr.outvars)  # no numbers
            names = [graph.outputs[i] for i in exact] if whole else graph.outputs
            made = self.planner.exact_values(graph, names)
            floats = {name for name in made if graph.values[name].is_float}
            yield from (op.name for op in graph.ops if floats.intersection(op.results))

        known = Inputs(processor=self.promotes, full_in=full_in)
        inner = prepare(
            closed, self.planner, known, training=self.training, captured=RULE
        )
        names = frozenset(inner.program.inputs[index] for index in tangents)
        return replace(inner, tangents=names).run(operands)


Search = Callable[[Program, ProgramGraph, Callable[[Plan], Prepared]], Plan]
"""Function that searches a plan, given a function that makes a plan runnable."""


@dataclass(frozen=True)
class Inputs:
    """Known facts about the inputs of a program.

    Attributes:
        names: Their names, in order.
        kinds: Their kinds; those that are missing are plain inputs.
        second: A trace in low precision, which reveals user casts.
        states: Pairs of an output and the input that it replaces, by position.
        processor: Promotion system used while the program was traced.
        search: Searches a plan, in place of the planner.
        full_in: Returns the ops that run in full under any policy.
    """

    names: tuple[str, ...] = ()
    kinds: Mapping[int, ValueKind] = field(default_factory=dict[int, ValueKind])
    second: Second | None = None
    states: tuple[tuple[int, int], ...] = ()
    processor: Processor | None = None
    search: Search | None = None
    full_in: Callable[[ProgramGraph], Iterable[str]] | None = None


def prepare(
    closed: Any,
    planner: Planner,
    inputs: Inputs | None = None,
    plan: Plan | None = None,
    *,
    training: bool,
    captured: str,
) -> Prepared:
    """Return a traced program with its plan.

    Args:
        closed: A ClosedJaxpr.
        planner: Makes the plan.
        inputs: Known facts about the inputs.
        plan: A plan to apply instead.
        training: Whether the program will be differentiated.
        captured: Description of the capture, for the plan.

    Raises:
        PlanMismatchError: ``plan`` belongs to another program.
    """
    known = inputs or Inputs()
    name_of = known.names.__getitem__ if known.names else "input_{}".format
    program, notes = _completed(inline(closed, name_of), known, rule=captured == RULE)
    kinds: dict[str, ValueKind] = {
        program.inputs[index]: kind for index, kind in known.kinds.items()
    }
    graph = read(program, kinds)

    full = frozenset(known.full_in(graph) if known.full_in else ())
    departs = plan is not None or known.search is not None or bool(full)

    def build(plan: Plan) -> Prepared:
        check_ops(graph, plan)
        return Prepared(
            program,
            graph,
            plan,
            planner,
            training,
            promotes=known.processor,
            departs=departs,
        )

    if plan is not None:
        check_fits(graph, plan, training=training)
    else:
        plan = (
            planner(
                graph,
                keep_parameter_dtype=True,
                captured=captured,
                differentiable=training,
                full=full,
            )
            if known.search is None
            else known.search(program, graph, build)
        ).with_warnings(*notes)
    return build(plan)


def _completed(
    program: Program, known: Inputs, *, rule: bool
) -> tuple[Program, tuple[str, ...]]:
    """Return a program with restored casts and states, and warnings."""
    notes: tuple[str, ...] = ()
    if known.second is not None:
        program, notes = known.second.restore(program)
    if known.processor is None:
        return program, notes
    states = ((output, program.inputs[index]) for output, index in known.states)
    program = take_out(replace(program, states=tuple(states)))
    if rule:  # it has its derivative in it
        return program, notes
    norms = find_complex_norms(program)
    return conjugated(program, norms), (*notes, *norms.warnings())


def _common_end(one: str, other: str) -> int:
    """Return the number of equal last components of two paths."""
    pairs = zip(reversed(one.split(".")), reversed(other.split(".")), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
