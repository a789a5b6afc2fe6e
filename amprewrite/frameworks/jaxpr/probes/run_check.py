"""The check of a run: the traced program and the converted one, side by side, once.

Steps run one by one. A loop runs compiled as a whole, with its steps counted, and its
first turns once more one by one, to look inside; in low precision it is stopped after a
multiple of its steps in full precision, so that it cannot hang.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from amprewrite.errors import Notice
from amprewrite.execute.run_check import INTENDED, Extent, RunCheck, limit
from amprewrite.frameworks.jaxpr.compat import tracers
from amprewrite.frameworks.jaxpr.compat.untyped import jax, jnp
from amprewrite.frameworks.jaxpr.executor import Env, ProgramExecutor, Turn
from amprewrite.frameworks.jaxpr.interpret.interpreter import Writer
from amprewrite.frameworks.jaxpr.interpret.pipeline import Prepared
from amprewrite.frameworks.jaxpr.probes.full_precision import Exact, is_inexact
from amprewrite.frameworks.jaxpr.probes.lockstep import Pair, Sides, samples
from amprewrite.frameworks.jaxpr.probes.runner import counted
from amprewrite.frameworks.jaxpr.program.program import (
    Body,
    Number,
    Step,
    all_steps,
    dtype_name,
)

TURNS = 16
"""Turns of a loop that are run one by one: most stacks of layers have no more."""

Counts = defaultdict[str, list[int]]
"""Numbers of steps of each loop of unknown length, by its name, one for each run."""


def run_check(
    prepared: Prepared, closed: Any, arrays: Sequence[Any]
) -> tuple[Notice, ...]:
    """Return what one run of both programs shows.

    Nothing is run if arrays have no values (under a transformation of JAX), if the
    program has side effects (it prints, or calls back), in a group of processes, which
    might differ, and if the plan rounds nothing that a run has to show, see
    :meth:`RunCheck.of`.

    Args:
        prepared: The program and its plan.
        closed: The traced ClosedJaxpr.
        arrays: The arrays of the call, in the program's order.
    """
    values = (*arrays, *prepared.program.constants.values())
    if closed.effects or jax.process_count() > 1 or not all(map(_has_value, values)):
        return ()
    check = RunCheck.of(prepared.graph, prepared.plan)
    if check is None:
        return ()
    with tracers.evaluated_now(), np.errstate(over="ignore"):
        SideBySide(prepared, check).walk(arrays, arrays)
    return check.notices()


def _has_value(value: Any) -> bool:
    array = isinstance(value, (jax.Array, np.ndarray, np.generic))
    return array and not tracers.is_tracer(value)


class _Counting(ProgramExecutor):
    """Executor that counts the steps of loops of unknown length."""

    counts: Counts

    def most(self, step: Step) -> int:
        """Return the number of steps after which a loop is stopped."""
        del step
        return np.iinfo(np.int32).max

    def branch_of(self, step: Step, env: Env) -> int | None:
        """Return the branch to run in place; None under a trace."""
        index = self.get(step.operands[0], env)
        if tracers.is_tracer(index):
            return None
        return min(max(int(index), 0), len(step.bodies) - 1)

    def on_loop(self, step: Step, test: Turn, turn: Turn, start: list[Any]) -> Any:
        """Run a loop, compiled if it has no other inside; return its last carry."""
        most = self.most(step)
        if any(map(_loops, step.bodies)) and not any(map(tracers.is_tracer, start)):
            steps, carry = 0, start
            while steps < most and bool(test(carry)):
                steps, carry = steps + 1, turn(carry)
        else:
            steps, carry = counted(test, turn, start, most)
        if not tracers.is_tracer(steps):
            self.counts[step.name].append(int(steps))
        return carry


class _Full(_Counting, Exact):
    """The traced program."""


class _Low(_Counting, Writer):
    """The converted program; its loops end."""

    full: Counts

    def most(self, step: Step) -> int:
        """Return a multiple of the most steps in full precision."""
        return limit(max(self.full[step.name], default=0))


class SideBySide(Pair):
    """Executor of both programs that shows their values to a check.

    Args:
        prepared: The program and its plan.
        check: Receives the values.
    """

    wide: _Full
    writer: _Low

    def __init__(self, prepared: Prepared, check: RunCheck) -> None:
        """Store the programs; nothing is run."""
        super().__init__(_Low(prepared), _Full(prepared.program))
        self.wide.counts, self.writer.counts = defaultdict(list), defaultdict(list)
        self.writer.full = self.wide.counts
        self.check = check
        self.turns: dict[str, int] = {}

    def on_step(self, step: Step, env: Env) -> Sequence[Any]:
        """Run a step of both; look into a loop."""
        if step.primitive == "scan":
            if step.eqn.params["length"] > TURNS:
                self.scan(step, env)  # its first turns
                return super().on_step(step, env)
            return self.scan(step, env)
        results = super().on_step(step, env)
        if step.primitive == "while":
            self._ended(step)
            if not step.eqn.params["cond_jaxpr"].out_avals[0].shape:  # one row
                self.while_loop(step, env)
        return results

    def on_both(self, step: Step, env: Env) -> list[Sides]:
        """Run a step of both; show its operands and its results."""
        ours, theirs = self.sides(step, env)
        index = 0
        operands: list[Sides] = []
        for atom in step.operands:
            if isinstance(atom, Number):
                operands.append(Sides(atom.value, atom.value))
                continue
            read = ours[atom]
            if not step.bodies:
                read = self.writer.as_read(step.name, index, read)
                self.on_cast(atom, step.name, ours[atom], read)
            operands.append(Sides(read, theirs[atom]))
            index += 1
        if step.name in self.check.exact:
            low, full = ([pair[side] for pair in operands] for side in (0, 1))
            self.check.saw_argument(step.name, full, low)
        results = self.run_both(step, ours, theirs)
        floats = [is_inexact(dtype_name(result.theirs)) for result in results]
        for op, positions in samples(step, floats):
            for position in positions:
                extent = self._extent(*results[position])
                if extent is not None:
                    self.check.saw_overflow((op,), extent)
        return results

    def on_cast(self, name: str, reader: str, held: Any, read: Any) -> None:
        """Show a value, and the result of a cast of it."""
        if dtype_name(held) != dtype_name(read) and is_inexact(dtype_name(held)):
            maker = self.check.graph.producer.get(name)
            extent = self._extent(read, held)
            if extent is not None:
                self.check.saw_cast((reader,), maker.name if maker else "", extent)

    def on_scan(
        self, step: Step, turn: Turn, carry: list[Any], slices: Any
    ) -> tuple[list[Any], Any]:
        """Run the first turns of a loop; its results are whole if it has no more."""
        length = step.eqn.params["length"]
        order = range(length)[:: -1 if step.eqn.params["reverse"] else 1]
        rows: list[list[Any]] = []
        for i in order[:TURNS]:
            taken = [Sides(*(side[i] for side in pair)) for pair in slices]
            carry, row = turn(carry, taken)
            rows.append(row)
        if step.eqn.params["reverse"]:
            rows.reverse()
        columns = [
            list(zip(*column, strict=True)) for column in zip(*rows, strict=True)
        ]
        return carry, [Sides(*map(jnp.stack, column)) for column in columns]

    def on_loop(self, step: Step, test: Turn, turn: Turn, start: list[Any]) -> Any:
        """Run the first turns of a loop that both programs take."""
        del test  # it decides by two values
        for _ in range(self.turns[step.name]):
            start = turn(start)
        return start

    def _ended(self, step: Step) -> None:
        """Compare the numbers of steps of a loop that was run."""
        full, low = (side.counts[step.name][-1] for side in (self.wide, self.writer))
        self.turns[step.name] = min(full, low, TURNS)
        tested = step.bodies[0].outputs[0]
        maker = (
            None if isinstance(tested, Number) else self.check.graph.producer[tested]
        )
        if maker is not None and maker.name in self.check.loops:
            self.check.saw_loop(maker.name, full, low)

    def _extent(self, low: Any, full: Any) -> Extent | None:
        """Return the elements that are finite in ``full`` alone; None without any."""
        if not self.check.narrow or not is_inexact(dtype_name(low)):
            return None
        finite = np.isfinite(np.asarray(low))
        if finite.all():
            return None
        exact = np.asarray(full)
        lost = np.isfinite(exact) & ~finite & (abs(exact) < INTENDED)
        if not lost.any():
            return None
        return Extent(int(lost.sum()), lost.size, float(abs(exact[lost]).max()))


def _loops(body: Body) -> bool:
    """Return whether a body has a loop of unknown length."""
    return any(step.primitive == "while" for step in all_steps(body.steps))
