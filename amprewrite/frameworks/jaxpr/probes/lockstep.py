"""Run two forms of one program side by side, step by step: reference and converted.

Each step of both is run on its own operands (the accumulated error), and the converted
one once more on the reference's operands, rounded to the dtypes that they are stored in
(its own error). Bodies that run once in place are entered; a loop is one step. Values
are freed after their last use.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np

from amprewrite.dtypes import format_of, is_float
from amprewrite.execute.lockstep import inserted, inserted_sample
from amprewrite.frameworks.jaxpr.compat.untyped import jnp
from amprewrite.frameworks.jaxpr.executor import Env, ProgramExecutor
from amprewrite.frameworks.jaxpr.interpret.interpreter import Writer
from amprewrite.frameworks.jaxpr.interpret.pipeline import Prepared
from amprewrite.frameworks.jaxpr.probes.full_precision import Wide, is_inexact
from amprewrite.frameworks.jaxpr.probes.runner import to_array
from amprewrite.frameworks.jaxpr.program.inline import SHARED
from amprewrite.frameworks.jaxpr.program.program import (
    Number,
    Program,
    RegionBoundary,
    Step,
    all_steps,
    dtype_name,
    names_of,
)
from amprewrite.measure.runs import Array, Observe, OpSample, are_equal
from amprewrite.plan import OUTPUT


class Sides(NamedTuple):
    """One value of both programs.

    Attributes:
        ours: The value of the converted program.
        theirs: The value of the reference.
    """

    ours: Any
    theirs: Any


class Pair(ProgramExecutor):
    """Executor of a converted program and the original one; values are :class:`Sides`.

    Args:
        writer: The converted program.
        wide: The reference: the same program.
        context: Makes the context in which the reference runs.
    """

    in_place = frozenset((*SHARED, "custom_vjp_call"))

    def __init__(
        self,
        writer: Writer,
        wide: Wide,
        context: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        """Store the two programs."""
        super().__init__(writer.program)
        self.writer, self.wide, self.context = writer, wide, context
        self.left = frozenset(_left(self.program))

    def on_both(self, step: Step, env: Env) -> list[Sides]:
        """Return the results of a step that is not entered."""
        raise NotImplementedError

    def on_cast(self, name: str, reader: str, held: Any, read: Any) -> None:
        """Look at a value, and at the result of a cast of it for ``reader``."""

    def walk(self, ours: Iterable[Any], theirs: Iterable[Any]) -> list[Any]:
        """Run both programs, each on its own arrays; return the reference's outputs."""
        first = self.writer.start(ours)
        with self.context():
            exact = self.wide.start(self.wide.inputs(theirs))
        env: Env = {name: Sides(value, exact[name]) for name, value in first.items()}
        self.run(self.program.steps, env)
        outputs = [self.get(atom, env) for atom in self.program.outputs]
        for index, name in enumerate(names_of(self.program.outputs)):
            stored = env[name].ours
            self.on_cast(
                name, OUTPUT, stored, self.writer.as_read(OUTPUT, index, stored)
            )
        return [output.theirs for output in outputs]

    def run(self, steps: Iterable[Step], env: Env) -> None:
        """Run ``steps``; values are freed after their last use."""
        listed = tuple(steps)
        uses = _last_uses(listed, self.left)
        for step in listed:
            super().run((step,), env)
            for name in uses[step.name]:
                env.pop(name, None)

    def on_step(self, step: Step, env: Env) -> Sequence[Any]:
        """Run a step of both; enter a body that runs once in place."""
        enters = step.primitive in self.in_place
        if step.bodies and (enters or self.branch_of(step, env) is not None):
            return super().on_step(step, env)
        return self.on_both(step, env)

    def branch_of(self, step: Step, env: Env) -> int | None:
        """Return the branch to enter; None if rounding changed it."""
        if step.primitive != "cond":
            return None
        picked = set(map(int, self.get(step.operands[0], env)))
        if len(picked) > 1:
            return None
        return min(max(picked.pop(), 0), len(step.bodies) - 1)

    def literal(self, atom: Number) -> Sides:
        """Return the value of a number in both programs."""
        with self.context():
            exact = self.wide.literal(atom)
        return Sides(self.writer.literal(atom), exact)

    def cross(self, boundary: RegionBoundary, env: Env, which: int = 0) -> Sides:
        """Return the value that passes by ``boundary``, and look at the passage."""
        atom = boundary.reads[which]
        read = {atom: env[atom]} if isinstance(atom, str) else {}
        passed = self.writer.cross(boundary, _side(read, 0), which)
        with self.context():
            exact = self.wide.cross(boundary, _side(read, 1), which)
        for name, value in read.items():
            self.on_cast(name, boundary.op, value.ours, passed)
        return Sides(passed, exact)

    def sides(self, step: Step, env: Env) -> tuple[Env, Env]:
        """Return what a step reads in the converted program, and in the reference."""
        read = {name: env[name] for name in names_of(step.operands)}
        known = {**self.constants(env), **read} if step.bodies else read
        return _side(known, 0), _side(known, 1)

    def run_both(self, step: Step, ours: Env, theirs: Env) -> list[Sides]:
        """Run a step of both programs, which add its results to their values."""
        with self.context():
            self.wide.run([step], theirs)
        self.writer.run([step], ours)
        return [Sides(ours[name], theirs[name]) for name in step.results]


class Lockstep(Pair):
    """Comparison of the steps of a converted program with the original's.

    Args:
        prepared: The program and its plan.
        wide: The reference: the same program.
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
        super().__init__(Writer(prepared), wide, context)
        self.prepared, self.observe = prepared, observe
        self.decisions = prepared.plan.by_op

    def on_both(self, step: Step, env: Env) -> list[Sides]:
        """Run a step of both programs and of one alone, and show the samples."""
        ours, theirs = self.sides(step, env)
        names = names_of(step.operands)
        fed: Env = {n: _rounded(theirs[n], ours[n]) for n in names}
        again = None if step.bodies else _Again(self, step, theirs, fed)
        for index, name in enumerate(names):
            read = self.writer.as_read(step.name, index, fed[name])
            self.on_cast(name, step.name, fed[name], read)
        alone = {**ours, **fed}
        results = self.run_both(step, ours, theirs)
        floats = [is_inexact(dtype_name(result.theirs)) for result in results]
        if not any(floats):
            return results
        self.writer.run([step], alone)
        same = again.results() if again is not None else None
        largest = max(map(np.size, fed.values()), default=0)
        for op, positions in samples(step, floats):
            reference, actual, own = (
                tuple(to_array(values[step.results[i]]) for i in positions)
                for values in (theirs, ours, alone)
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
                length=largest / max(1, min(array.size for array in reference)),
                format=self.decisions[op].forward,
            )
            self.observe(sample)
        return results

    def on_cast(self, name: str, reader: str, held: Any, read: Any) -> None:
        """Compare a value with the result of an inserted cast of it."""
        before, after = dtype_name(held), dtype_name(read)
        if before == after or not (is_float(before) and is_float(after)):
            return
        decision = inserted(
            f"{name} for {reader}",
            "convert_element_type",
            (before, after),
            self.decisions.get(reader),
        )
        source, value = to_array(held), to_array(read)
        limit = float(format_of(after).max)
        exceeded = None if (abs(source) <= limit).all() else limit
        self.observe(inserted_sample(decision, source, value, exceeded, (reader,)))


class _Again:
    """A step of the original and operands for it, in the reference's dtypes."""

    def __init__(self, walk: Lockstep, step: Step, theirs: Env, fed: Env) -> None:
        """Read the operands as the converted step does; run nothing."""
        self.walk, self.step = walk, step
        self.given: Env = {}
        for index, name in enumerate(names_of(step.operands)):
            read = walk.writer.as_read(step.name, index, fed[name])
            with walk.context():
                self.given[name] = _rounded(read, theirs[name])

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

        with self.walk.context():
            given = {name: moved(value) for name, value in self.given.items()}
        return self._run(given)

    def _run(self, env: Env) -> tuple[Array, ...]:
        with self.walk.context():
            self.walk.wide.run([self.step], env)
        made = (env[name] for name in self.step.results)
        return tuple(to_array(x) for x in made if is_inexact(dtype_name(x)))


def samples(step: Step, floats: Sequence[bool]) -> Iterator[tuple[str, list[int]]]:
    """Yield the ops of the plan for a step, with positions of their results."""
    positions = [i for i, flag in enumerate(floats) if flag]
    if not step.bodies:
        yield step.name, positions
        return
    for position in positions:
        leave = step.leaves[position]
        if leave is not None:
            yield leave.op, [position]


def _side(values: Mapping[str, Sides], which: int) -> Env:
    """Return the values of one of the two programs."""
    return {name: value[which] for name, value in values.items()}


def _left(program: Program) -> Iterator[str]:
    """Yield the names of all values that leave the program or a body."""
    bodies = (body for step in all_steps(program.steps) for body in step.bodies)
    outputs = (program.outputs, *(body.outputs for body in bodies))
    yield from (name for atoms in outputs for name in names_of(atoms))


def _last_uses(steps: Sequence[Step], left: frozenset[str]) -> Mapping[str, list[str]]:
    """Return for each step the values made here that are not used after it."""
    made = {name for step in steps for name in step.results} - left
    last: dict[str, list[str]] = {}
    for step in reversed(steps):
        used = dict.fromkeys((*names_of(step.operands), *step.results))
        last[step.name] = [name for name in used if name in made]
        made.difference_update(used)
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
