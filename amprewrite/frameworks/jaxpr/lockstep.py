"""Run two forms of one program side by side, step by step: reference and converted.

Each step of both is run on its own operands (the error so far), and the converted one
once more on the reference's operands, rounded to the dtypes that they are stored in
(the error that it makes by itself). Bodies that run once where they stand are entered;
a loop is one step. Values are dropped after their last use.
"""

# JAX's own types are partial: what its functions give is unknown to a type checker.
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from amprewrite.dtypes import format_of, is_float
from amprewrite.frameworks.base import Array, Observe, OpSample
from amprewrite.frameworks.jaxpr.bodies import HANDLERS
from amprewrite.frameworks.jaxpr.crossing import entering
from amprewrite.frameworks.jaxpr.inline import SHARED
from amprewrite.frameworks.jaxpr.ops import dtype_name
from amprewrite.frameworks.jaxpr.prepare import Prepared
from amprewrite.frameworks.jaxpr.program import Atom, Body, Program, Step
from amprewrite.frameworks.jaxpr.runner import to_array
from amprewrite.frameworks.jaxpr.untyped import jnp
from amprewrite.frameworks.jaxpr.wide import Wide, Widener, is_inexact
from amprewrite.frameworks.jaxpr.write import Env, Writer

ONCE = frozenset((*SHARED, "custom_vjp_call"))
"""Primitives whose body runs once, where it stands."""

Pair = tuple[Step, Step]
"""One step: of the converted program, of the reference."""

Envs = tuple[Env, Env]
"""Values by name, of both."""


class Half:
    """One of the two programs.

    Args:
        writer: Runs its steps.
        context: Gives what must be entered while they run.
    """

    def __init__(
        self, writer: Writer, context: Callable[[], AbstractContextManager[Any]]
    ) -> None:
        """Remember who runs it."""
        self.writer, self.context = writer, context

    def run(self, step: Step, env: Env) -> None:
        """Run one step."""
        with self.context():
            self.writer.run([step], env)

    def enter(self, body: Body, env: Env) -> Env:
        """Return the values inside ``body``."""
        with self.context():
            entered = entering(self.writer, body, env)
        names = (enter.makes for enter in body.enters if enter is not None)
        return {**env, **dict(zip(names, entered, strict=True))}

    def leave(self, step: Step, which: int, inner: Env, env: Env) -> None:
        """Take the results of a body out of it."""
        rows = zip(step.results, step.bodies[which].outputs, step.leaves, strict=True)
        with self.context():
            for name, atom, leave in rows:
                env[name] = (
                    self.writer.get(atom, inner)
                    if leave is None
                    else self.writer.cross(leave, inner, which)
                )


class Lockstep:
    """A walk over a converted program and the original one.

    Args:
        prepared: The program and its plan.
        wide: The reference.
        context: Gives what must be entered while the reference runs.
        observe: Takes a sample of each op.
    """

    def __init__(
        self,
        prepared: Prepared,
        wide: Wide,
        context: Callable[[], AbstractContextManager[Any]],
        observe: Observe,
    ) -> None:
        """Remember what to compare."""
        self.prepared, self.wide, self.observe = prepared, wide, observe
        self.ours = Half(Writer(prepared, HANDLERS), nullcontext)
        self.theirs = Half(Widener(wide), context)
        self.decisions = prepared.plan.by_op

    def walk(self, ours: Iterable[Any], theirs: Iterable[Any]) -> None:
        """Run both programs, each on its own arrays."""
        program, other = self.prepared.program, self.wide.program
        env: Env = dict(program.constants)
        env.update(zip(program.inputs, ours, strict=True))
        with self.theirs.context():
            exact = Widener(self.wide).start(self.wide.inputs(theirs))
        self._steps(program, other, (env, exact))

    def _steps(self, ours: Program | Body, theirs: Program | Body, envs: Envs) -> None:
        """Run the steps of both, as they stand in one body or at top level."""
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
        """Return which body of a step runs once where it stands; None if none does."""
        step = pair[0]
        if step.primitive in ONCE and step.bodies:
            return 0
        if step.primitive != "cond" or not step.bodies:
            return None
        halves = zip((self.ours, self.theirs), pair, envs, strict=True)
        picked = {int(half.writer.get(s.operands[0], env)) for half, s, env in halves}
        if len(picked) > 1:
            return None  # rounding took the program elsewhere
        return min(max(picked.pop(), 0), len(step.bodies) - 1)

    def _enter(self, pair: Pair, which: int, envs: Envs) -> None:
        """Compare the steps of a body that runs once where it stands."""
        ours, theirs = (step.bodies[which] for step in pair)
        inner = self.ours.enter(ours, envs[0]), self.theirs.enter(theirs, envs[1])
        self._steps(ours, theirs, inner)
        self.ours.leave(pair[0], which, inner[0], envs[0])
        self.theirs.leave(pair[1], which, inner[1], envs[1])

    def _compare(self, pair: Pair, envs: Envs) -> None:
        (step, twin), (env, other) = pair, envs
        fed = {
            name: _rounded(other[exact], env[name])
            for name, exact in zip(_names(step), _names(twin), strict=True)
        }
        self.theirs.run(twin, other)
        self.ours.run(step, env)
        floats = [is_inexact(dtype_name(other[name])) for name in twin.results]
        if not any(floats):
            return
        alone: Env = {**self.ours.writer.constants(env), **fed}
        self.ours.run(step, alone)
        for op, positions in _samples(step, floats):
            reference, actual, own = (
                tuple(to_array(values[one.results[i]]) for i in positions)
                for values, one in ((other, twin), (env, step), (alone, step))
            )
            exact = not step.bodies and self._is_exact(pair, other, fed, own)
            self.observe(OpSample(op, reference, actual, own, exact))

    def _is_exact(
        self, pair: Pair, other: Env, fed: Env, found: tuple[Array, ...]
    ) -> bool:
        """Whether the original's step gives the same from the same rounded operands."""
        step, twin = pair
        if self.decisions[step.name].op_class == "allow":
            return False  # a contraction rounds; save its time
        given: Env = {}
        pairs = zip(_names(step), _names(twin), strict=True)
        for index, (name, exact) in enumerate(pairs):
            read = self.ours.writer.read(step.name, index, name, fed)
            with self.theirs.context():
                given[exact] = _rounded(read, other[exact])
        self.theirs.run(twin, given)
        made = (given[name] for name in twin.results)
        wanted = [to_array(x) for x in made if is_inexact(dtype_name(x))]
        pairs = zip(found, wanted, strict=True)
        return all(np.array_equal(one, two, equal_nan=True) for one, two in pairs)


def _samples(step: Step, floats: Sequence[bool]) -> Iterator[tuple[str, list[int]]]:
    """Yield the ops of the plan that stand for a step, with positions of results."""
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
    """Return for each step the values, made here, that nobody uses after it."""
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

    Where the program has brought large numbers into the range of its dtype (a mask of
    -3.4e38 in float16) the copy is brought there too.
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
