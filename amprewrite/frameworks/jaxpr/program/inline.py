"""Build a program from a jaxpr: inline its calls, name its values, open its bodies.

Calls are inlined because demand must propagate through them: with calls as barriers,
the backward pass of demand found nothing in a layer norm written with ``jnp.var``. The
bodies of checkpoints and custom JVP rules read outer values directly; values pass into
loops, branches, custom VJP rules and manual meshes by boundaries.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from amprewrite.frameworks.jaxpr.compat import equations, tracers
from amprewrite.frameworks.jaxpr.compat.equations import (
    Eqn,
    Frames,
    named_frames,
    source_line,
    transformations,
)
from amprewrite.frameworks.jaxpr.compat.untyped import jax, jex
from amprewrite.frameworks.jaxpr.program.program import (
    FENCES,
    TYPED_BODIES,
    Atom,
    Body,
    BoundaryKind,
    Number,
    Program,
    RegionBoundary,
    Step,
    dtype_name,
)
from amprewrite.ops.compounds import function_compound

# Calls of named functions around equations, such as ``jax.nn.softmax``, numbered.
#
# JAX inlines most of its own functions while it traces; their names are then in the
# tracebacks of the equations alone.

BACKWARD = "backward of "
"""Prefix of calls of which an equation is transposed."""


@dataclass
class _Call:
    """A call that equations belong to.

    Attributes:
        name: Its compound and number.
        first: Traceback of its first equation.
        last: Traceback of its last equation so far.
    """

    name: str
    first: Any
    last: Any


class CallNumbers:
    """Numbers of the calls in a program.

    Equations belong to one call if the frames around it are the same. In a Python loop
    they are the same for each iteration: one begins where the first equation of the
    call comes again.
    """

    def __init__(self) -> None:
        """Begin without calls."""
        self._calls: dict[tuple[str, int, Frames], _Call] = {}
        self._counts: Counter[str] = Counter()

    def around(
        self, eqn: Eqn, stack: Any, outer: tuple[str, ...], inlined: int
    ) -> tuple[str, ...]:
        """Return the calls around an equation, outermost first.

        Args:
            eqn: The equation.
            stack: Name stack of the jitted calls around it; None without any.
            outer: Calls around the jitted call that it is in.
            inlined: Number of that jitted call.
        """
        traceback = eqn.source_info.traceback
        found = named_frames(traceback)
        if not found:
            return outer
        stacks = (eqn.source_info.name_stack, stack)
        derived = any("transpose" in transformations(s) for s in stacks if s)
        prefix = BACKWARD if derived else ""
        names: list[str] = []
        for compound, above in found:
            if not above and outer and outer[-1].startswith(f"{compound}#"):
                continue  # the jitted function itself
            key = prefix + compound, inlined, above
            names.append(self._numbered(key, traceback, restarts=not derived))
        return (*outer, *names)

    def entered(self, eqn: Eqn, calls: tuple[str, ...]) -> tuple[str, ...]:
        """Return the calls around the body of a jitted call.

        Args:
            eqn: The call.
            calls: Calls around it, as :meth:`around` returns them.
        """
        compound = function_compound(str(eqn.params.get("name", "")))
        if not compound or (calls and calls[-1].startswith(f"{compound}#")):
            return calls
        return (*calls, self._next(compound))

    def _numbered(
        self, key: tuple[str, int, Frames], traceback: Any, *, restarts: bool
    ) -> str:
        call = self._calls.get(key)
        again = call is not None and traceback == call.first != call.last
        if call is None or (again and restarts):
            call = self._calls[key] = _Call(self._next(key[0]), traceback, traceback)
        call.last = traceback
        return call.name

    def _next(self, compound: str) -> str:
        self._counts[compound] += 1
        return f"{compound}#{self._counts[compound]}"


CALLS = frozenset(("closed_call", "core_call", "composite"))
"""Primitives that only call their body."""

JITS = ("jit", "pjit")
"""Names of the ``jax.jit`` primitive in different versions of JAX."""

SHARED = frozenset(("checkpoint", "remat2", "remat", "custom_jvp_call", *JITS))
"""Primitives with a body that reads the outer values themselves."""


def inline(
    closed: Any,
    name_of: Callable[[int], str] = "input_{}".format,
    also: frozenset[str] = frozenset(),
    whole: Callable[[Any], bool] | None = None,
) -> Program:
    """Return the program of a ClosedJaxpr.

    Args:
        closed: The traced ClosedJaxpr.
        name_of: Returns the name of each input by its position.
        also: Further primitives to inline, for inspection only: inlined, they lose
            their derivative rules.
        whole: Returns whether an equation stays one step, without bodies.
    """
    return _Inliner(CALLS | also, whole).program(closed, name_of)


Entering = tuple[Atom, BoundaryKind]
"""Value that enters a body, and the kind of its boundary."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """Passage of values into the bodies of an equation, and out of them.

    Attributes:
        bodies: Label and jaxpr of each body, and the values that enter it.
        carries: Number of results that are carries; they come first.
        leaves: Kind of the boundaries of the other results.
    """

    bodies: Sequence[tuple[str, Any, Sequence[Entering]]]
    carries: int = 0
    leaves: BoundaryKind = "leave"


class Names:
    """Supply of unique names."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        """Store the names that are in use."""
        self.taken = set(taken)
        self.numbers: dict[str, int] = {}  # the next one to try, by base

    def fresh(self, base: str) -> str:
        """Return a name that is not in use: ``base``, or with a number."""
        name, number = base, self.numbers.get(base, 1)
        while name in self.taken:
            name = f"{base}_{number}"
            number += 1
        self.numbers[base] = number
        self.taken.add(name)
        return name


@dataclass(frozen=True, slots=True)
class _Where:
    """Position of equations in the nest of calls and bodies.

    Attributes:
        stack: Name stack of the calls around them inside the body; None without calls.
        outer: Names of all scopes around them.
        region: Name of the body.
        calls: Calls of named functions around them.
        call: Number of the innermost jitted call around them; 0 outside of one.
        line: ``file:line`` of the user's call of that one; empty outside.
    """

    stack: Any = None
    outer: tuple[str, ...] = ()
    region: str = ""
    calls: tuple[str, ...] = ()
    call: int = 0
    line: str = ""

    def of(self, eqn: Any) -> Any:
        own = eqn.source_info.name_stack
        if self.stack is None:
            return own
        return self.stack + own if own.stack else self.stack

    def scopes(self, eqn: Any) -> tuple[str, ...]:
        own = equations.scopes(eqn.source_info.name_stack)
        return (*self.outer, *own) if own else self.outer

    def called(self, eqn: Any, calls: tuple[str, ...], number: int) -> "_Where":
        """Return the place inside a call that is inlined."""
        stack, scopes = self.of(eqn), self.scopes(eqn)
        return _Where(stack, scopes, self.region, calls, number, self.line_of(eqn))

    def inside(self, eqn: Any, name: str) -> "_Where":
        """Return the place inside the body called ``name``."""
        region = f"{self.region}/{name}" if self.region else name
        return replace(self, stack=None, outer=self.scopes(eqn), region=region)

    def line_of(self, eqn: Any) -> str:
        """Return the user's line of an equation, or that of the call around it."""
        return source_line(eqn.source_info.traceback) or self.line


class _Inliner:
    def __init__(
        self, calls: frozenset[str], whole: Callable[[Any], bool] | None
    ) -> None:
        self.calls, self.whole = calls, whole
        self.names = Names()  # of ops
        self.values = Names()
        self.avals: dict[str, Any] = {}
        self.constants: dict[str, Any] = {}
        self.calls_in = CallNumbers()
        self.inlined = itertools.count(1)

    def program(self, closed: Any, name_of: Callable[[int], str]) -> Program:
        inputs = tuple(
            self._name(name_of(i), var.aval)
            for i, var in enumerate(closed.jaxpr.invars)
        )
        where = _Where()
        steps, outputs = self._jaxpr(closed.jaxpr, closed.consts, inputs, where)
        return Program(inputs, self.constants, steps, outputs, self.avals)

    def _name(self, base: str, aval: Any) -> str:
        name = self.values.fresh(base)
        self.avals[name] = aval
        return name

    def _constant(self, value: Any, aval: Any) -> Atom:
        """Return the name of a closed-over value; a known scalar is a number."""
        scalar = aval.shape == () if hasattr(aval, "shape") else False
        if scalar and not tracers.is_tracer(value) and _is_plain(value):
            return Number(np.asarray(value), dtype_name(aval))
        name = self._name("constant", aval)
        self.constants[name] = value
        return name

    def _jaxpr(
        self, jaxpr: Any, consts: Iterable[Any], inputs: Iterable[Atom], where: _Where
    ) -> tuple[tuple[Step, ...], tuple[Atom, ...]]:
        env: dict[Any, Atom] = dict(zip(jaxpr.invars, inputs, strict=True))
        for var, value in zip(jaxpr.constvars, consts, strict=True):
            env[var] = self._constant(value, var.aval)

        def read(atom: Any) -> Atom:
            if isinstance(atom, jex.Literal):
                weak = bool(getattr(atom.aval, "weak_type", False))
                return Number(atom.val, dtype_name(atom.aval), weak)
            return env[atom]

        steps: list[Step] = []
        for eqn in jaxpr.eqns:
            made, results = self._eqn(eqn, tuple(map(read, eqn.invars)), where)
            steps += made
            env.update(zip(eqn.outvars, results, strict=True))
        return tuple(steps), tuple(map(read, jaxpr.outvars))

    def _eqn(
        self, eqn: Any, operands: tuple[Atom, ...], where: _Where
    ) -> tuple[tuple[Step, ...], tuple[Atom, ...]]:
        """Return the steps of one equation, and its results."""
        primitive = eqn.primitive.name
        if self.whole is not None and self.whole(eqn):
            step = self._plain(eqn, operands, where)
            return (step,), step.results
        plain = primitive in JITS and equations.is_plain_jit(eqn)
        if plain or primitive in self.calls:
            jaxpr, consts = _opened(equations.body_of(eqn))
            calls = self.calls_in.entered(eqn, self._calls(eqn, where))
            inner = where.called(eqn, calls, next(self.inlined))
            return self._jaxpr(jaxpr, consts, operands, inner)
        if primitive in SHARED:
            step = self._shared(eqn, operands, where)
        elif primitive in LAYOUTS and not eqn.params.get("branches_platforms"):
            step = self._bodied(eqn, operands, where)
        else:
            step = self._plain(eqn, operands, where)
        return (step,), step.results

    def _step(
        self,
        eqn: Any,
        operands: tuple[Atom, ...],
        where: _Where,
        results: Iterable[Any] = (),
        fence: str = "",
    ) -> Step:
        """Return the step of an equation, with names for the variables ``results``."""
        name = self.names.fresh(eqn.primitive.name.replace("-", "_"))
        return Step(
            name=name,
            eqn=eqn,
            operands=operands,
            results=tuple([self._name(name, var.aval) for var in results]),
            stack=where.of(eqn),
            scopes=where.scopes(eqn),
            region=where.region,
            fence=fence,
            calls=self._calls(eqn, where),
            called_at=where.line,
        )

    def _calls(self, eqn: Any, where: _Where) -> tuple[str, ...]:
        """Return the calls of named functions around an equation."""
        return self.calls_in.around(eqn, where.stack, where.calls, where.call)

    def _plain(self, eqn: Any, operands: tuple[Atom, ...], where: _Where) -> Step:
        primitive = eqn.primitive.name
        fence = FENCES.get(primitive, "")
        if not fence and primitive not in TYPED_BODIES and equations.has_bodies(eqn):
            fence = f"{primitive} has a body of a kind that is not known here"
        return self._step(eqn, operands, where, eqn.outvars, fence)

    def _shared(self, eqn: Any, operands: tuple[Atom, ...], where: _Where) -> Step:
        """Return the step of a body that reads the outer values themselves."""
        step = self._step(eqn, operands, where)
        inner = where.inside(eqn, step.name)
        jaxpr, consts = _opened(equations.body_of(eqn))
        steps, outputs = self._jaxpr(jaxpr, consts, operands, inner)
        made = {name for inside in steps for name in inside.results}
        leaves: list[RegionBoundary | None] = []
        results: list[str] = []
        for index, (atom, var) in enumerate(zip(outputs, eqn.outvars, strict=True)):
            boundary = None
            if isinstance(atom, Number) or atom not in made or atom in results:
                makes = self._name(step.name, var.aval)
                op = self.names.fresh(f"{step.name}.out{index}")
                boundary = RegionBoundary(op, "leave", (atom,), makes)
            leaves.append(boundary)
            results.append(boundary.makes if boundary else str(atom))
        body = Body(operands, (None,) * len(operands), steps, outputs, inner.region)
        return replace(
            step, results=tuple(results), bodies=(body,), leaves=tuple(leaves)
        )

    def _bodied(self, eqn: Any, operands: tuple[Atom, ...], where: _Where) -> Step:
        """Return the step of bodies that values pass into and out of by boundaries."""
        step = self._step(eqn, operands, where)
        layout = LAYOUTS[step.primitive](eqn, operands)
        bodies = tuple([self._body(step, *body, where) for body in layout.bodies])
        leaving = bodies if step.primitive == "cond" else bodies[-1:]
        leaves: list[RegionBoundary] = []
        rows = zip(eqn.outvars, *(body.outputs for body in leaving), strict=True)
        for index, (var, *reads) in enumerate(rows):
            kind = "carry" if index < layout.carries else layout.leaves
            makes = self._name(step.name, var.aval)
            op = self.names.fresh(f"{step.name}.out{index}")
            leaves.append(RegionBoundary(op, kind, tuple(reads), makes))
        results = tuple([leave.makes for leave in leaves])
        return replace(step, results=results, bodies=bodies, leaves=tuple(leaves))

    def _body(
        self,
        step: Step,
        label: str,
        inner: Any,
        operands: Iterable[Entering],
        where: _Where,
    ) -> Body:
        """Return a body with ``operands`` entering by the given boundaries."""
        jaxpr, consts = _opened(inner)
        inputs: list[Atom] = []
        enters: list[RegionBoundary | None] = []
        pairs = enumerate(zip(operands, jaxpr.invars, strict=True))
        for index, ((atom, kind), var) in pairs:
            if isinstance(atom, Number) and kind == "enter":
                inputs.append(atom)
                enters.append(None)
                continue
            op = self.names.fresh(f"{step.name}{label}.in{index}")
            makes = self._name(op, var.aval)
            inputs.append(makes)
            enters.append(RegionBoundary(op, kind, (atom,), makes))
        below = where.inside(step.eqn, step.name + label)
        steps, outputs = self._jaxpr(jaxpr, consts, inputs, below)
        return Body(tuple(inputs), tuple(enters), steps, outputs, below.region)


def _scan(eqn: Any, operands: tuple[Atom, ...]) -> _Layout:
    consts, carries = equations.scan_counts(eqn)
    turns = consts + carries
    entering = _passing(operands[:consts], "enter")
    entering += _passing(operands[consts:turns], "carry")
    entering += _passing(operands[turns:], "enter")
    return _Layout([("", eqn.params["jaxpr"], entering)], carries)


def _while(eqn: Any, operands: tuple[Atom, ...]) -> _Layout:
    params: Mapping[str, Any] = eqn.params
    first = params["cond_nconsts"]
    second = first + params["body_nconsts"]
    carry = _passing(operands[second:], "carry")
    test = _passing(operands[:first], "enter") + carry
    turn = _passing(operands[first:second], "enter") + carry
    bodies = (
        (".test", params["cond_jaxpr"], test),
        (".body", params["body_jaxpr"], turn),
    )
    return _Layout(bodies, len(carry))


def _cond(eqn: Any, operands: tuple[Atom, ...]) -> _Layout:
    entering = _passing(operands[1:], "enter")
    branches = enumerate(eqn.params["branches"])
    return _Layout([(f".{i}", branch, entering) for i, branch in branches])


def _shard_map(eqn: Any, operands: tuple[Atom, ...]) -> _Layout:
    return _Layout([("", equations.body_of(eqn), _passing(operands, "enter"))])


def _custom_vjp(eqn: Any, operands: tuple[Atom, ...]) -> _Layout:
    entering = _passing(operands, "boundary")
    return _Layout([("", equations.body_of(eqn), entering)], leaves="boundary")


LAYOUTS: Mapping[str, Callable[[Any, tuple[Atom, ...]], _Layout]] = {
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    "shard_map": _shard_map,
    "custom_vjp_call": _custom_vjp,
}
"""Passage of values into and out of bodies, by primitive; others are fences."""


def _opened(inner: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the jaxpr and constants of an open or closed jaxpr."""
    if isinstance(inner, jex.ClosedJaxpr):
        return inner.jaxpr, tuple(inner.consts)
    return inner, ()


def _passing(atoms: Iterable[Atom], kind: BoundaryKind) -> list[Entering]:
    return [(atom, kind) for atom in atoms]


def _is_plain(value: Any) -> bool:
    """Return whether NumPy can represent a value; a random key it cannot."""
    dtype = getattr(value, "dtype", None)
    if dtype is None or not hasattr(value, "__array__"):
        return False
    return not jax.dtypes.issubdtype(dtype, jax.dtypes.extended)
