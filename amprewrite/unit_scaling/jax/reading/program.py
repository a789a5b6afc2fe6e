"""A traced program as the analysis reads it: bodies of custom rules as single ops."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.jaxpr.compat import equations
from amprewrite.frameworks.jaxpr.compat.tracebacks import source_line
from amprewrite.frameworks.jaxpr.program.inline import inline
from amprewrite.frameworks.jaxpr.program.ops import SCALE, canonical_name
from amprewrite.frameworks.jaxpr.program.program import (
    Atom,
    Body,
    Program,
    Step,
    all_steps,
)
from amprewrite.frameworks.jaxpr.program.read import read
from amprewrite.ir import ProgramGraph
from amprewrite.ir.graph import ValueKind
from amprewrite.unit_scaling.graph import Closing

CLOSED = frozenset({"cond", "custom_jvp_call", "custom_vjp_call", "while"})
"""Primitives with bodies that stay as they are: each is one op."""
SHARED = frozenset({"checkpoint", "jit", "pjit", "remat", "remat2"})
"""Primitives with a body that reads the outer values, in which factors are put."""
OPENED = SHARED | {"scan"}
"""Primitives with bodies that factors are put into."""


@dataclass(frozen=True)
class Reading:
    """A program and its graph.

    Attributes:
        program: The program; steps of :data:`CLOSED` have no bodies.
        graph: Its graph.
        steps: Its steps by name, at every depth.
        made_by: The step that makes each value, those inside of custom rules too.
        same: Values that are another value, or a number: results of custom rules.
        inside: Canonical names of the ops in the body of each custom JVP function.
        turns: For each constant of a scan, by the op that passes it in, the number of
            turns that read it.
        closing: Carries of loops: value inside that leaves a turn, and that enters.
    """

    program: Program
    graph: ProgramGraph
    steps: Mapping[str, Step]
    made_by: Mapping[str, Step]
    same: Mapping[str, Atom]
    inside: Mapping[str, frozenset[str]]
    turns: Mapping[str, Any]
    closing: Closing


def read_program(
    closed: Any,
    name_of: Callable[[int], str],
    kinds: Mapping[int, ValueKind],
    states: Iterable[tuple[int, int]] = (),
) -> Reading:
    """Return the reading of a ClosedJaxpr.

    Args:
        closed: The ClosedJaxpr.
        name_of: Returns the name of each input by its position.
        kinds: Kinds of the inputs that are more than inputs, by position.
        states: Outputs that replace an input, each with it, by position.

    Raises:
        UnsupportedError: It maps over a mesh, or has factors already.
    """
    whole = inline(closed, name_of)
    made_by: dict[str, Step] = {}
    same: dict[str, Atom] = {}
    inside: dict[str, frozenset[str]] = {}
    for step in all_steps(whole.steps):
        _refuse(step)
        if not step.bodies:
            made_by |= dict.fromkeys(step.results, step)
        elif step.primitive == "custom_jvp_call":
            (body,) = step.bodies
            inside[step.name] = frozenset(
                canonical_name(part.primitive) for part in all_steps(body.steps)
            )
            pairs = zip(step.results, body.outputs, strict=True)
            same |= {name: atom for name, atom in pairs if name != atom}
    program = replace(
        whole,
        steps=tuple(map(_without_rules, whole.steps)),
        states=tuple((output, whole.inputs[index]) for output, index in states),
    )
    named: dict[str, ValueKind] = {
        program.inputs[index]: kind for index, kind in kinds.items()
    }
    steps = {step.name: step for step in all_steps(program.steps)}
    loops = [step for step in steps.values() if step.primitive == "scan"]
    turns: dict[str, Any] = {}
    closing: list[tuple[str, str]] = []
    for step in loops:
        (body,) = step.bodies
        consts, carries = equations.scan_counts(step.eqn)
        for enter in body.enters[:consts]:
            if enter is not None:
                turns[enter.op] = step.eqn.params["length"]
        carried = body.inputs[consts : consts + carries]
        for left, entered in zip(body.outputs[:carries], carried, strict=True):
            if isinstance(left, str) and isinstance(entered, str) and left != entered:
                closing.append((left, entered))
    graph = _needed(read(program, named), closing)
    return Reading(program, graph, steps, made_by, same, inside, turns, tuple(closing))


def _needed(graph: ProgramGraph, closing: list[tuple[str, str]]) -> ProgramGraph:
    """Return a graph without the ops that no output depends on.

    JAX leaves such ops in a trace: the sign of a ``logsumexp``.
    """
    needed, before = set(graph.outputs), -1
    while len(needed) > before:
        before = len(needed)
        for op in reversed(graph.ops):
            if needed.intersection(op.results):
                needed |= set(op.operands)
        needed |= {left for left, entered in closing if entered in needed}
    ops = tuple(op for op in graph.ops if needed.intersection(op.results))
    return replace(graph, ops=ops)


def _without_rules(step: Step) -> Step:
    """Return a step without the bodies that stay as they are, at every depth."""
    if step.primitive in CLOSED:
        return replace(step, bodies=(), leaves=())
    bodies = tuple(_body(body) for body in step.bodies)
    return replace(step, bodies=bodies)


def _body(body: Body) -> Body:
    return replace(body, steps=tuple(map(_without_rules, body.steps)))


def _refuse(step: Step) -> None:
    """Refuse bodies that no factor can be put into.

    Raises:
        UnsupportedError: Names the primitive and its line.
    """
    where = source_line(step.eqn.source_info.traceback)
    if step.bodies and step.primitive not in OPENED | CLOSED:
        msg = (
            f"unit scaling has no rule for the body of {step.primitive} at {where}; "
            f"scale the function inside of it, or write it with ops of "
            f"amprewrite.unit_scaling.functional_jax"
        )
        raise UnsupportedError(msg)
    if SCALE in (step.primitive, _function_name(step)):
        msg = (
            f"the function has factors of unit scaling already, at {where}; want one "
            "without ops of amprewrite.unit_scaling"
        )
        raise UnsupportedError(msg)


def _function_name(step: Step) -> str:
    """Return the name of the function of a custom rule; empty for other steps."""
    if step.primitive != "custom_jvp_call":
        return ""
    info: Any = equations.body_of(step.eqn).jaxpr.debug_info
    return str(info.func_name) if info is not None else ""
