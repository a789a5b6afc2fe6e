"""A traced program as the analysis reads it: bodies of custom rules as single ops."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.jaxpr.compat import equations
from amprewrite.frameworks.jaxpr.compat.equations import source_line
from amprewrite.frameworks.jaxpr.program.inline import inline
from amprewrite.frameworks.jaxpr.program.program import (
    SCALE,
    Atom,
    Body,
    Program,
    Step,
    all_steps,
    canonical_name,
)
from amprewrite.frameworks.jaxpr.program.read import read
from amprewrite.ir import Op, ProgramGraph
from amprewrite.ir.graph import ValueKind
from amprewrite.ops import traits_of
from amprewrite.unit_scaling.graph.units import ELEMENTWISE, Closing, Differentiable

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


# Slices: the ops between a value and another one that depends on it alone.

PLAIN = ELEMENTWISE | {
    "comparison", "extremum", "factory", "log_exp", "mean", "metadata", "movement",
    "rounding", "selection", "sum",
}  # fmt: skip
"""Groups of ops that a function of rows may be made of."""
UNIFORM = ELEMENTWISE | {"comparison", "metadata", "selection"}
"""Groups of ops that make one number of one number."""
MOVES = frozenset({"cast", "enter", "expand", "permute", "reshape", "squeeze"})
"""Ops that hand a parameter on, in another shape."""
LONGEST = 60
"""Ops in a slice; functions that are known have at most 20."""


@dataclass(frozen=True)
class Slice:
    """Ops that compute one value from another one.

    Attributes:
        root: The value that they depend on.
        exit: Name of the last op.
        members: Names of the ops, the last one included, but for those that ops
            outside read as well. Those are no ops that gradients pass.
        gain: A value made of a parameter that they depend on as well; empty if none.
    """

    root: str
    exit: str
    members: frozenset[str]
    gain: str = ""


@dataclass
class Slicer:
    """Finds slices in one program."""

    reading: Reading
    live: Differentiable
    impure: frozenset[str] = field(init=False)
    uniform: frozenset[str] = field(init=False)
    passed: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        """Find the values that depend on a gradient, and those of one number."""
        self.impure = frozenset(_impure(self.live))
        self.uniform = _uniform(self.reading)
        self.passed = frozenset(op.name for op in self.live.ops)

    def ending_at(self, last: Op) -> Iterator[Slice]:
        """Yield the slices that end at an op, the shortest one first."""
        graph = self.reading.graph
        members: set[str] = {last.name}
        frontier: set[str] = self._read(last)
        gain = ""
        while frontier and len(members) < LONGEST:
            if len(frontier) == 1:
                (root,) = frontier
                if root in self.live.values and self._is_closed(members, last):
                    used = {
                        name
                        for name in members
                        if name == last.name or self._is_inside(name, members)
                    }
                    yield Slice(root, last.name, frozenset(used), gain)
            latest = max(frontier, key=self._position)
            op = graph.producer.get(latest)
            side = self.is_parameter(latest) and len(frontier) > 1
            if side and not gain:
                gain = latest
                frontier.discard(latest)
                continue
            if op is None or side or not _is_plain(op) or op.region != last.region:
                return
            frontier.discard(latest)
            members.add(op.name)
            frontier |= self._read(op) - {gain}

    def is_parameter(self, name: str) -> bool:
        """Return whether a value is a parameter of one dimension, perhaps moved."""
        graph = self.reading.graph
        extents = [d for d in graph.values[name].shape if d != 1]
        if len(extents) > 1 or name not in self.live.values:
            return False
        return graph.values[self.origin(name)].kind == "parameter"

    def origin(self, name: str) -> str:
        """Return the value that another one is moved from."""
        graph = self.reading.graph
        while name in graph.producer:
            op = graph.producer[name]
            if op.canonical not in MOVES or len(op.operands) != 1:
                break
            name = op.operands[0]
        return name

    def _read(self, op: Op) -> set[str]:
        return {name for name in op.operands if name in self.impure}

    def _position(self, name: str) -> int:
        op = self.reading.graph.producer.get(name)
        return -1 if op is None else self.reading.graph.position[op.name]

    def _is_closed(self, members: set[str], last: Op) -> bool:
        """Return whether members alone use the values with a gradient."""
        return all(
            user.name in members or user.name not in self.passed
            for name in members
            if name != last.name
            for result in self.reading.graph.op_by_name[name].results
            if result in self.live.values
            for user, _ in self.reading.graph.users[result]
        ) and not any(
            result in self.live.outputs
            for name in members
            if name != last.name
            for result in self.reading.graph.op_by_name[name].results
        )

    def _is_inside(self, name: str, members: set[str]) -> bool:
        graph = self.reading.graph
        return all(
            result not in graph.outputs
            and all(user.name in members for user, _ in graph.users[result])
            for result in graph.op_by_name[name].results
        )


def is_elementwise(reading: Reading, op: Op) -> bool:
    """Return whether an op is a custom JVP function of elementwise ops."""
    if op.native != "custom_jvp_call":
        return False
    groups = {traits_of(name).group for name in reading.inside[op.name]}
    return groups <= UNIFORM | {"movement"}


def _is_plain(op: Op) -> bool:
    is_rule = op.native == "custom_jvp_call"
    return (is_rule or op.traits.group in PLAIN) and not op.fence


def _impure(live: Differentiable) -> set[str]:
    """Return the values that depend on one with a gradient."""
    found = set(live.values)
    for op in live.graph.ops:
        if found.intersection(op.operands):
            found |= set(op.results)
    return found


def _uniform(reading: Reading) -> frozenset[str]:
    """Return the values that are one number everywhere, made of numbers alone."""
    found: set[str] = set()
    for step in all_steps(reading.program.steps):
        op = reading.graph.op_by_name.get(step.name)
        if op is None or step.bodies or op.fence:
            continue
        if op.traits.group not in UNIFORM and op.canonical not in ("expand", "full"):
            continue
        if found.issuperset(op.operands):
            found |= set(op.results)
    return frozenset(found)
