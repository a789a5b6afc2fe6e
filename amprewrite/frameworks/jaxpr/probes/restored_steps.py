"""Run a program by its plan with some of its steps replaced by the original's.

A restored step is bound as traced, on the stored values of its operands, before any
cast of them. Its result is kept as it is; readers that are not restored round it to the
dtype in which they read. Steps inside of loops and branches are restored too.
"""

import time
from collections.abc import Callable, Collection, MutableMapping, Sequence
from typing import Any

from amprewrite.dtypes import is_float, itemsize
from amprewrite.frameworks.jaxpr.compat import tracers
from amprewrite.frameworks.jaxpr.compat.untyped import jax
from amprewrite.frameworks.jaxpr.executor import Env
from amprewrite.frameworks.jaxpr.interpret.interpreter import Writer, cast
from amprewrite.frameworks.jaxpr.interpret.pipeline import Prepared
from amprewrite.frameworks.jaxpr.probes.full_precision import Exact
from amprewrite.frameworks.jaxpr.program.program import (
    Program,
    Step,
    all_steps,
    dtype_name,
    names_of,
)

CAST = " for "
"""Between a value and its reader, in the name of an inserted cast."""


def restorable(program: Program) -> frozenset[str]:
    """Return the steps that can be restored alone: those without bodies."""
    return frozenset(s.name for s in all_steps(program.steps) if not s.bodies)


class Restoring(Writer):
    """Executor of a program by its plan, with some steps restored.

    Args:
        prepared: The program with its plan.
        original: The program with the constants of the original.
        restored: Names of steps, and of inserted casts.
        seconds: Receives the additional time of each step that is restored.
    """

    def __init__(
        self,
        prepared: Prepared,
        original: Program,
        restored: Collection[str],
        seconds: MutableMapping[str, float],
    ) -> None:
        """Store the programs; nothing is run."""
        super().__init__(prepared)
        self.exact, self.seconds = Exact(original), seconds
        self.restored = frozenset(name for name in restored if CAST not in name)
        casts = (name.rpartition(CAST) for name in restored if CAST in name)
        self.right = frozenset(reader for _, _, reader in casts)

    def as_read(self, op: str, index: int, value: Any) -> Any:
        """Return ``value`` in the dtype in which operand ``index`` of ``op`` reads."""
        if op in self.right:
            wanted, saturate = self.casts.get((op, index), ("", False))
            differs = wanted and dtype_name(value) != wanted
            read = cast(value, wanted, saturate=saturate) if differs else value
        else:
            read = super().as_read(op, index, value)
        decision = self.decisions.get(op)
        if decision is None or index >= len(decision.operands):
            return read
        wanted, found = decision.operands[index], dtype_name(read)
        # A value that is kept full, where the plan stores it low, is rounded for an op
        # that computes low. One that computes in full would read it full, too.
        kept = is_float(found) and is_float(wanted) and found != decision.precision
        if kept and itemsize(found) > itemsize(wanted):
            return cast(read, wanted)
        return read

    def plain(self, step: Step, env: Env) -> Sequence[Any]:
        """Return the results of a step without bodies, by the plan or restored."""
        if step.name not in self.restored and not self._moves(step, env):
            return super().plain(step, env)

        def restored() -> Sequence[Any]:
            inner = {name: self._traced(name, env) for name in names_of(step.operands)}
            self.exact.run([step], inner)
            return [inner[name] for name in step.results]

        made = restored()
        known = step.name in self.seconds or step.name not in self.restored
        if not known and not any(map(tracers.is_tracer, made)):
            plain = super().plain
            converted = _time(lambda: plain(step, env))
            self.seconds[step.name] = _time(restored) - converted
        return made

    def _moves(self, step: Step, env: Env) -> bool:
        """Return whether a step moves values that are kept full."""
        decision = self.decisions[step.name]
        if decision.op_class != "follow" or step.chosen:
            return False
        stored = (dtype_name(env[name]) for name in names_of(step.operands))
        return any(
            is_float(full) and is_float(wanted) and itemsize(full) > itemsize(wanted)
            for full, wanted in zip(stored, decision.operands, strict=False)
        )

    def _traced(self, name: str, env: Env) -> Any:
        """Return a value in the dtype that it was traced in, as far as it is kept."""
        wanted = dtype_name(self.exact.program.avals[name])
        value = env[name]
        if is_float(wanted) and dtype_name(value) != wanted:
            return cast(value, wanted)
        return value


def _time(run: Callable[[], Any]) -> float:
    """Return the time of a second run: the first one compiles."""
    jax.block_until_ready(run())
    start = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - start
