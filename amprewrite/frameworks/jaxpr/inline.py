"""Make a program of a jaxpr: inline its calls, name its values, open its bodies.

Calls are inlined because demand must reach through them: with calls as barriers the
backward pass found nothing in a layer norm written with ``jnp.var``. The bodies of
checkpoints and custom JVP rules read outer values directly; into loops, branches,
custom VJP rules and manual meshes values pass by crossings.
"""

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jax.extend import core as jex

from amprewrite.frameworks.jaxpr import _compat
from amprewrite.frameworks.jaxpr.ops import FENCES, TYPED_BODIES, dtype_name
from amprewrite.frameworks.jaxpr.program import (
    Atom,
    Body,
    Crossing,
    CrossingKind,
    Number,
    Program,
    Step,
)

CALLS = {"closed_call": "call_jaxpr", "core_call": "call_jaxpr", "composite": "jaxpr"}
"""Primitives that only call, and the parameter that holds what they call."""

JITS = ("jit", "pjit")
"""Names of the primitive of ``jax.jit`` over the versions."""

SHARED = {
    **dict.fromkeys(("checkpoint", "remat2", "remat", *JITS), "jaxpr"),
    "custom_jvp_call": "call_jaxpr",
}
"""Primitives whose body reads the outer values themselves, and its parameter."""


def inline(closed: Any, name_of: Callable[[int], str] = "input_{}".format) -> Program:
    """Return the program of a ClosedJaxpr.

    Args:
        closed: What was traced.
        name_of: Gives the name of each input by its position.
    """
    return _Inliner().program(closed, name_of)


class _Names:
    """Hands out names that occur once."""

    def __init__(self) -> None:
        self.taken: set[str] = set()
        self.counts: dict[str, Iterable[int]] = {}

    def fresh(self, base: str) -> str:
        name = base
        counter = self.counts.setdefault(base, itertools.count(1))
        while name in self.taken:
            name = f"{base}_{next(iter(counter))}"
        self.taken.add(name)
        return name


@dataclass(frozen=True, slots=True)
class _Where:
    """Where equations stand.

    Attributes:
        stack: Scopes of the calls around them inside the body; None if there are none.
        outer: Names of the scopes around the body.
        region: Name of the body.
    """

    stack: Any = None
    outer: tuple[str, ...] = ()
    region: str = ""

    def of(self, eqn: Any) -> Any:
        own = eqn.source_info.name_stack
        return own if self.stack is None else self.stack + own

    def scopes(self, eqn: Any) -> tuple[str, ...]:
        return (*self.outer, *_compat.scopes(self.of(eqn)))

    def inside(self, eqn: Any, name: str) -> "_Where":
        """Return the place inside the body called ``name``."""
        region = f"{self.region}/{name}" if self.region else name
        return _Where(None, self.scopes(eqn), region)


class _Inliner:
    def __init__(self) -> None:
        self.names = _Names()  # of ops
        self.values = _Names()
        self.avals: dict[str, Any] = {}
        self.constants: dict[str, Any] = {}

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
        """Name what the function closed over; a scalar known now is a number."""
        scalar = aval.shape == () if hasattr(aval, "shape") else False
        if scalar and not _compat.is_tracer(value) and _is_plain(value):
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
        """Return the steps of one equation, and what its results are."""
        primitive = eqn.primitive.name
        if primitive in CALLS or (primitive in JITS and _compat.is_plain_jit(eqn)):
            inner = eqn.params[CALLS.get(primitive, "jaxpr")]
            below = replace(where, stack=where.of(eqn))
            jaxpr, consts = _opened(inner)
            return self._jaxpr(jaxpr, consts, operands, below)
        if primitive in SHARED:
            step = self._shared(eqn, operands, where)
        elif primitive in OPENERS and not eqn.params.get("branches_platforms"):
            step = OPENERS[primitive](self, eqn, operands, where)
        else:
            step = self._plain(eqn, operands, where)
        return (step,), step.results

    def _step(self, eqn: Any, operands: tuple[Atom, ...], where: _Where) -> Step:
        name = self.names.fresh(eqn.primitive.name.replace("-", "_"))
        return Step(
            name, eqn, operands, (), where.of(eqn), where.scopes(eqn), where.region
        )

    def _plain(self, eqn: Any, operands: tuple[Atom, ...], where: _Where) -> Step:
        primitive = eqn.primitive.name
        fence = FENCES.get(primitive, "")
        bodies = any(True for _ in jex.jaxprs_in_params(eqn.params))
        if not fence and bodies and primitive not in TYPED_BODIES:
            fence = f"{primitive} has a body of a kind that is not known here"
        name = self.names.fresh(primitive.replace("-", "_"))
        return Step(
            name=name,
            eqn=eqn,
            operands=operands,
            results=tuple(self._name(name, var.aval) for var in eqn.outvars),
            stack=where.of(eqn),
            scopes=where.scopes(eqn),
            region=where.region,
            fence=fence,
        )

    def _shared(self, eqn: Any, operands: tuple[Atom, ...], where: _Where) -> Step:
        """Open a body that reads the outer values themselves."""
        step = self._step(eqn, operands, where)
        inner = where.inside(eqn, step.name)
        jaxpr, consts = _opened(eqn.params[SHARED[eqn.primitive.name]])
        steps, outputs = self._jaxpr(jaxpr, consts, operands, inner)
        made = {name for inside in steps for name in inside.results}
        leaves: list[Crossing | None] = []
        results: list[str] = []
        for index, (atom, var) in enumerate(zip(outputs, eqn.outvars, strict=True)):
            crossing = None
            if isinstance(atom, Number) or atom not in made or atom in results:
                makes = self._name(step.name, var.aval)
                op = self.names.fresh(f"{step.name}.out{index}")
                crossing = Crossing(op, "leave", (atom,), makes)
            leaves.append(crossing)
            results.append(crossing.makes if crossing else str(atom))
        body = Body(operands, (None,) * len(operands), steps, outputs, inner.region)
        return _with(step, (body,), leaves, results)

    def _body(
        self,
        step: Step,
        inner: Any,
        operands: Iterable[tuple[Atom, CrossingKind]],
        where: _Where,
        label: str = "",
    ) -> Body:
        """Open a body into which ``operands`` pass in the given ways."""
        jaxpr, consts = _opened(inner)
        inputs: list[Atom] = []
        enters: list[Crossing | None] = []
        pairs = enumerate(zip(operands, jaxpr.invars, strict=True))
        for index, ((atom, kind), var) in pairs:
            if isinstance(atom, Number) and kind == "enter":
                inputs.append(atom)
                enters.append(None)
                continue
            op = self.names.fresh(f"{step.name}{label}.in{index}")
            makes = self._name(op, var.aval)
            inputs.append(makes)
            enters.append(Crossing(op, kind, (atom,), makes))
        below = where.inside(step.eqn, step.name + label)
        steps, outputs = self._jaxpr(jaxpr, consts, inputs, below)
        return Body(tuple(inputs), tuple(enters), steps, outputs, below.region)

    def _leaving(
        self, step: Step, rows: Iterable[tuple[tuple[Atom, ...], CrossingKind]]
    ) -> tuple[list[Crossing | None], list[str]]:
        """Let the results of bodies out, each read from one value of every body."""
        leaves: list[Crossing | None] = []
        pairs = enumerate(zip(rows, step.eqn.outvars, strict=True))
        for index, ((reads, kind), var) in pairs:
            makes = self._name(step.name, var.aval)
            op = self.names.fresh(f"{step.name}.out{index}")
            leaves.append(Crossing(op, kind, reads, makes))
        return leaves, [leave.makes for leave in leaves if leave]

    def _scan(self, eqn: Any, operands: tuple[Atom, ...], where: _Where) -> Step:
        step = self._step(eqn, operands, where)
        consts, carry = eqn.params["num_consts"], eqn.params["num_carry"]
        kinds = (_in_loop(i, consts, carry) for i in range(len(operands)))
        pairs = zip(operands, kinds, strict=True)
        body = self._body(step, eqn.params["jaxpr"], pairs, where)
        rows = (
            ((atom,), "carry" if i < carry else "leave")
            for i, atom in enumerate(body.outputs)
        )
        leaves, results = self._leaving(step, rows)  # pyright: ignore[reportArgumentType]  # a generator widens the literals
        return _with(step, (body,), leaves, results)

    def _while(self, eqn: Any, operands: tuple[Atom, ...], where: _Where) -> Step:
        step = self._step(eqn, operands, where)
        first = eqn.params["cond_nconsts"]
        second = first + eqn.params["body_nconsts"]
        carry = [(atom, "carry") for atom in operands[second:]]
        test = [(atom, "enter") for atom in operands[:first]] + carry
        turn = [(atom, "enter") for atom in operands[first:second]] + carry
        tested = self._body(step, eqn.params["cond_jaxpr"], test, where, ".test")  # pyright: ignore[reportArgumentType]  # a list widens the literals
        turned = self._body(step, eqn.params["body_jaxpr"], turn, where, ".body")  # pyright: ignore[reportArgumentType]  # a list widens the literals
        leaves, results = self._leaving(
            step, [((atom,), "carry") for atom in turned.outputs]
        )
        return _with(step, (tested, turned), leaves, results)

    def _cond(self, eqn: Any, operands: tuple[Atom, ...], where: _Where) -> Step:
        step = self._step(eqn, operands, where)
        bodies = tuple(
            self._body(
                step, branch, [(a, "enter") for a in operands[1:]], where, f".{i}"
            )
            for i, branch in enumerate(eqn.params["branches"])
        )
        rows = zip(*(body.outputs for body in bodies), strict=True)
        leaves, results = self._leaving(step, [(reads, "leave") for reads in rows])
        return _with(step, bodies, leaves, results)

    def _shard_map(self, eqn: Any, operands: tuple[Atom, ...], where: _Where) -> Step:
        return self._one_body(eqn, operands, where, "jaxpr", ("enter", "leave"))

    def _custom_vjp(self, eqn: Any, operands: tuple[Atom, ...], where: _Where) -> Step:
        ways: tuple[CrossingKind, CrossingKind] = ("boundary", "boundary")
        return self._one_body(eqn, operands, where, "call_jaxpr", ways)

    def _one_body(
        self,
        eqn: Any,
        operands: tuple[Atom, ...],
        where: _Where,
        parameter: str,
        ways: tuple[CrossingKind, CrossingKind],
    ) -> Step:
        step = self._step(eqn, operands, where)
        pairs = [(atom, ways[0]) for atom in operands]
        body = self._body(step, eqn.params[parameter], pairs, where)
        rows = [((atom,), ways[1]) for atom in body.outputs]
        leaves, results = self._leaving(step, rows)
        return _with(step, (body,), leaves, results)


Opener = Callable[[_Inliner, Any, tuple[Atom, ...], _Where], Step]

OPENERS: dict[str, Opener] = {
    "scan": _Inliner._scan,  # noqa: SLF001  # the table belongs to the class
    "while": _Inliner._while,  # noqa: SLF001
    "cond": _Inliner._cond,  # noqa: SLF001
    "shard_map": _Inliner._shard_map,  # noqa: SLF001
    "custom_vjp_call": _Inliner._custom_vjp,  # noqa: SLF001
}
"""How the bodies of each primitive are opened; others are fences."""


def _with(
    step: Step,
    bodies: tuple[Body, ...],
    leaves: Iterable[Crossing | None],
    results: Iterable[str],
) -> Step:
    return replace(step, results=tuple(results), bodies=bodies, leaves=tuple(leaves))


def _opened(inner: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the jaxpr and the constants of an open or closed jaxpr."""
    if isinstance(inner, jex.ClosedJaxpr):
        return inner.jaxpr, tuple(inner.consts)
    return inner, ()


def _in_loop(index: int, consts: int, carry: int) -> CrossingKind:
    return "carry" if consts <= index < consts + carry else "enter"


def _is_plain(value: Any) -> bool:
    dtype = getattr(value, "dtype", None)
    return dtype is not None and hasattr(value, "__array__")
