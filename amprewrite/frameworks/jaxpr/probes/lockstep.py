"""Run two forms of one program side by side, step by step: reference and converted.

Each step of both is run on its own operands (the accumulated error), and the converted
one once more on the reference's operands, rounded to the dtypes that they are stored in
(its own error). Bodies that run once in place are entered; a loop is one step. Values
are freed after their last use.
"""

# JAX's own types are partial: a type checker does not know its functions' results.
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from amprewrite.dtypes import format_of, is_float
from amprewrite.frameworks.jaxpr.compat.untyped import jnp
from amprewrite.frameworks.jaxpr.executor import Env, ProgramExecutor
from amprewrite.frameworks.jaxpr.interpret.interpreter import Writer
from amprewrite.frameworks.jaxpr.interpret.pipeline import Prepared
from amprewrite.frameworks.jaxpr.probes.reference_dtypes import (
    Wide,
    Widener,
    is_inexact,
)
from amprewrite.frameworks.jaxpr.probes.runner import to_array
from amprewrite.frameworks.jaxpr.program.inline import SHARED
from amprewrite.frameworks.jaxpr.program.ops import dtype_name
from amprewrite.frameworks.jaxpr.program.program import Atom, Body, Program, Step
from amprewrite.measure.runs import Array
from amprewrite.measure.samples import Observe, OpSample
from amprewrite.measure.values.blocks import are_equal, is_equal
from amprewrite.plan import OUTPUT, Decision

ONCE = frozenset((*SHARED, "custom_vjp_call"))
"""Primitives with a body that runs once, in place."""

Pair = tuple[Step, Step]
"""One step of the converted program, and its twin in the reference."""

Envs = tuple[Env, Env]
"""Values by name, of the converted program and of the reference."""


class Half:
    """One of the two programs.

    Args:
        writer: Executor of its steps.
        context: Makes the context in which they run.
    """

    def __init__(
        self,
        writer: ProgramExecutor,
        context: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        """Store the executor and the context."""
        self.writer, self.context = writer, context

    def run(self, step: Step, env: Env) -> None:
        """Run one step."""
        with self.context():
            self.writer.run([step], env)

    def enter(self, body: Body, env: Env) -> Env:
        """Return the values inside ``body``."""
        with self.context():
            entered = self.writer.entering(body, env)
        names = (enter.makes for enter in body.enters if enter is not None)
        return {**env, **dict(zip(names, entered, strict=True))}

    def leave(self, step: Step, which: int, inner: Env, env: Env) -> None:
        """Store the results of a body in the outer values."""
        with self.context():
            left = self.writer.leaving(step, inner, which)
        env.update(zip(step.results, left, strict=True))


class Lockstep:
    """A walk over a converted program and the original one.

    Args:
        prepared: The program and its plan.
        wide: The reference.
        context: Makes the context in which the reference runs.
        observe: Receives a sample of each op.
    """

    def __init__(
        self,
        prepared: Prepared,
        wide: Wide,
        context: Callable[[], AbstractContextManager[Any]],
        observe: Observe,
    ) -> None:
        """Store the two programs to compare."""
        self.prepared, self.wide, self.observe = prepared, wide, observe
        self.writer = Writer(prepared)
        self.ours = Half(self.writer, nullcontext)
        self.theirs = Half(Widener(wide), context)
        self.decisions = prepared.plan.by_op

    def walk(self, ours: Iterable[Any], theirs: Iterable[Any]) -> list[Any]:
        """Run both programs, each on its own arrays; return the reference's outputs."""
        program, other = self.prepared.program, self.wide.program
        env: Env = dict(program.constants)
        env.update(zip(program.inputs, ours, strict=True))
        with self.theirs.context():
            exact = Widener(self.wide).start(self.wide.inputs(theirs))
        self._steps(program, other, (env, exact))
        named = (atom for atom in program.outputs if isinstance(atom, str))
        for index, name in enumerate(named):
            read = self.writer.as_read(OUTPUT, index, env[name])
            self._handed(f"{name} for {OUTPUT}", env[name], read)
        with self.theirs.context():
            return [self.theirs.writer.get(atom, exact) for atom in other.outputs]

    def _steps(self, ours: Program | Body, theirs: Program | Body, envs: Envs) -> None:
        """Run the steps of both in one body or at top level."""
        last = [_last_uses(part.steps, part.outputs) for part in (ours, theirs)]
        for pair in zip(ours.steps, theirs.steps, strict=True):
            which = self._once(pair, envs)
            if which is None:
                self._compare(pair, envs)
            else:
                self._enter(pair, which, envs)
            for step, env, uses in zip(pair, envs, last, strict=True):
                for name in uses[step.name]:
                    env.pop(name, None)

    def _once(self, pair: Pair, envs: Envs) -> int | None:
        """Return the index of the body that runs once in place; None without one."""
        step = pair[0]
        if step.primitive in ONCE and step.bodies:
            return 0
        if step.primitive != "cond" or not step.bodies:
            return None
        halves = zip((self.ours, self.theirs), pair, envs, strict=True)
        picked = {int(half.writer.get(s.operands[0], env)) for half, s, env in halves}
        if len(picked) > 1:
            return None  # rounding changed the branch
        return min(max(picked.pop(), 0), len(step.bodies) - 1)

    def _enter(self, pair: Pair, which: int, envs: Envs) -> None:
        """Compare the steps of a body that runs once in place."""
        ours, theirs = (step.bodies[which] for step in pair)
        inner = self.ours.enter(ours, envs[0]), self.theirs.enter(theirs, envs[1])
        for cross in filter(None, ours.enters):
            if isinstance(cross.reads[0], str):
                held, passed = envs[0][cross.reads[0]], inner[0][cross.makes]
                self._handed(f"{cross.reads[0]} for {cross.op}", held, passed)
        self._steps(ours, theirs, inner)
        self.ours.leave(pair[0], which, inner[0], envs[0])
        rows = zip(pair[0].results, ours.outputs, pair[0].leaves, strict=True)
        for name, atom, leave in rows:
            if leave is not None and isinstance(leave.reads[which], str):
                held = inner[0][str(leave.reads[which])]
                self._handed(f"{atom} for {leave.op}", held, envs[0][name])
        self.theirs.leave(pair[1], which, inner[1], envs[1])

    def _compare(self, pair: Pair, envs: Envs) -> None:
        (step, twin), (env, other) = pair, envs
        fed = {
            name: _rounded(other[exact], env[name])
            for name, exact in zip(_names(step), _names(twin), strict=True)
        }
        again = None if step.bodies else _Again(self, pair, other, fed)
        for index, name in enumerate(_names(step)):
            read = self.writer.as_read(step.name, index, fed[name])
            self._handed(f"{name} for {step.name}", fed[name], read)
        self.theirs.run(twin, other)
        self.ours.run(step, env)
        floats = [is_inexact(dtype_name(other[name])) for name in twin.results]
        if not any(floats):
            return
        alone: Env = {**self.ours.writer.constants(env), **fed}
        self.ours.run(step, alone)
        same = again.results() if again is not None else None
        for op, positions in _samples(step, floats):
            reference, actual, own = (
                tuple(to_array(values[one.results[i]]) for i in positions)
                for values, one in ((other, twin), (env, step), (alone, step))
            )
            sample = OpSample(
                op=op,
                reference=reference,
                actual=actual,
                alone=own,
                exact=same is not None and are_equal(own, same),
                same=same,
                again=again,
                contracts=self.prepared.graph.op_by_name[op].contracted is not None,
                length=_length(fed, reference),
                format=self.prepared.plan.by_op[op].forward,
            )
            self.observe(sample)

    def _handed(self, name: str, held: Any, read: Any) -> None:
        """Compare a value with the result of an inserted cast of it."""
        before, after = dtype_name(held), dtype_name(read)
        if before == after or not (is_float(before) and is_float(after)):
            return
        whole = wanted, found = to_array(held), to_array(read)
        # Masks may be clamped to the range: values beyond it count as zero.
        bounded = np.abs(wanted) <= float(format_of(after).max)
        if not bounded.all():
            wanted, found = np.where(bounded, wanted, 0), np.where(bounded, found, 0)
        reader = name.rpartition(" for ")[2]
        self.observe(
            OpSample(
                op=name,
                reference=(wanted,),
                actual=(found,),
                alone=(found,),
                exact=is_equal(found, wanted),
                same=(wanted,),
                again=lambda _unit, _draw: (wanted,),
                decision=_inserted(name, (before, after), self.decisions.get(reader)),
                whole=whole,
                readers=(reader,),
            )
        )


class _Again:
    """A step of the original and operands for it, in the reference's dtypes."""

    def __init__(self, walk: Lockstep, pair: Pair, other: Env, fed: Env) -> None:
        """Read the operands as the converted step does; run nothing."""
        step, self.twin = pair
        self.theirs = walk.theirs
        self.given: Env = {}
        pairs = zip(_names(step), _names(self.twin), strict=True)
        for index, (name, exact) in enumerate(pairs):
            read = walk.writer.as_read(step.name, index, fed[name])
            with self.theirs.context():
                self.given[exact] = _rounded(read, other[exact])

    def results(self) -> tuple[Array, ...]:
        """Return the results that are floats."""
        return self._run(dict(self.given))

    def __call__(self, unit: float, draw: int) -> tuple[Array, ...]:
        """Return the results with every float operand moved by ``unit``, up or down."""
        draws = np.random.default_rng(draw)

        def moved(value: Any) -> Any:
            if not is_inexact(dtype_name(value)):
                return value
            held = np.asarray(value)
            signs = draws.integers(0, 2, held.shape) * 2.0 - 1.0
            return jnp.asarray((held * (1 + unit * signs)).astype(held.dtype))

        with self.theirs.context():
            given = {name: moved(value) for name, value in self.given.items()}
        return self._run(given)

    def _run(self, env: Env) -> tuple[Array, ...]:
        self.theirs.run(self.twin, env)
        made = (env[name] for name in self.twin.results)
        return tuple(to_array(x) for x in made if is_inexact(dtype_name(x)))


def _length(read: Env, made: tuple[Array, ...]) -> float:
    """Return the number of elements that a step reads for each that it makes."""
    largest = max((np.size(value) for value in read.values()), default=0)
    return largest / max(1, min(array.size for array in made))


def _inserted(name: str, dtypes: tuple[str, str], reader: Decision | None) -> Decision:
    """Return the decision about an inserted cast for ``reader``, as a row of a plan."""
    before, after = dtypes
    return Decision(
        op=name,
        canonical="cast",
        native="convert_element_type",
        op_class="inserted",
        precision=after,
        rule="inserted",
        why="hands on a value in the dtype that the plan wants",
        path="" if reader is None else reader.path,
        source="" if reader is None else reader.source,
        operands=(before,),
        results=(after,),
    )


def _samples(step: Step, floats: Sequence[bool]) -> Iterator[tuple[str, list[int]]]:
    """Yield the ops of the plan for a step, with positions of their results."""
    positions = [i for i, flag in enumerate(floats) if flag]
    if not step.bodies:
        yield step.name, positions
        return
    for position in positions:
        leave = step.leaves[position]
        if leave is not None:
            yield leave.op, [position]


def _names(step: Step) -> list[str]:
    return [atom for atom in step.operands if isinstance(atom, str)]


def _last_uses(
    steps: Iterable[Step], outputs: Iterable[Atom]
) -> Mapping[str, list[str]]:
    """Return for each step the values made here that are not used after it."""
    held = tuple(steps)
    made = {name for step in held for name in step.results}
    seen = {atom for atom in outputs if isinstance(atom, str)}
    last: dict[str, list[str]] = {}
    for step in reversed(held):
        used = dict.fromkeys((*_names(step), *step.results))
        last[step.name] = [n for n in used if n in made and n not in seen]
        seen.update(used)
    return last


def _rounded(exact: Any, like: Any) -> Any:
    """Return ``exact`` in the dtype of ``like``.

    If the program clamped large numbers to the range of its dtype (a mask of -3.4e38 in
    float16), the copy is clamped too.
    """
    name = dtype_name(like)
    if not is_inexact(name) or dtype_name(exact) == name:
        return exact
    held = np.asarray(exact)
    with np.errstate(over="ignore"):
        if is_float(name) and bool(jnp.isfinite(like).all()):
            limit = np.asarray(format_of(name).max, np.float64)
            held = np.where(np.isfinite(held), held.clip(-limit, limit), held)
        return jnp.asarray(held.astype(jnp.dtype(name)))
