"""Remove the casts of promotion from a program, recording them at their readers.

The plan then has these casts, with reasons, as any others. The same holds for the cast
of a new state to its old dtype, which JAX makes where an array is written.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from amprewrite.dtypes import is_float
from amprewrite.frameworks.jaxpr.compat import name_stacks
from amprewrite.frameworks.jaxpr.compat.untyped import jnp
from amprewrite.frameworks.jaxpr.program.ops import dtype_name
from amprewrite.frameworks.jaxpr.program.program import (
    Atom,
    Body,
    Number,
    Program,
    RegionBoundary,
    Step,
    all_steps,
    names_of,
)
from amprewrite.frameworks.jaxpr.program.scopes import PROMOTED

CAST = "convert_element_type"


def take_out(program: Program) -> Program:
    """Return ``program`` without the casts inserted by promotion during tracing."""
    program = _without_state_casts(program)
    steps = list(all_steps(program.steps))
    stays = set(_read_as_they_are(program, steps))
    taken = {
        step.results[0]: (step.operands[0], dtype_name(step.eqn.outvars[0].aval))
        for step in steps
        if _is_promotion(step) and step.results[0] not in stays
    }
    if not taken:
        return program
    found = _TakeOut(taken)
    return replace(program, steps=found.steps(program.steps))


def _is_promotion(step: Step) -> bool:
    """Return whether a step is a promotion cast, not the derivative of one."""
    derived = "transpose" in name_stacks.transformations(step.stack)
    own = step.primitive == CAST and step.scopes[-1:] == (PROMOTED,)
    return own and not derived


def _read_as_they_are(program: Program, steps: Iterable[Step]) -> Iterator[str]:
    """Yield values passed on under their own name: their readers are unknown here."""
    yield from names_of(program.outputs)
    for step in steps:
        if not step.bodies:
            continue
        crossed = {
            name
            for boundary in (*step.leaves, *(e for b in step.bodies for e in b.enters))
            if boundary is not None
            for name in names_of(boundary.reads)
        }
        handed = (*step.operands, *(a for b in step.bodies for a in b.outputs))
        yield from (name for name in names_of(handed) if name not in crossed)


@dataclass(frozen=True)
class _TakeOut:
    """Rewriter of the readers of removed casts.

    Attributes:
        taken: The removed casts by result: their operand and target dtype.
    """

    taken: Mapping[str, tuple[Atom, str]]

    def steps(self, steps: Iterable[Step]) -> tuple[Step, ...]:
        kept = (s for s in steps if not (s.results and s.results[0] in self.taken))
        return tuple(map(self._step, kept))

    def _step(self, step: Step) -> Step:
        if step.bodies:
            return replace(
                step,
                operands=self._sources(step.operands),
                bodies=tuple(map(self._body, step.bodies)),
                leaves=tuple(map(self._boundary, step.leaves)),
            )
        operands, wants = self._read(step.operands)
        return replace(step, operands=operands, wants=wants)

    def _body(self, body: Body) -> Body:
        return replace(
            body,
            inputs=self._sources(body.inputs),
            enters=tuple(map(self._boundary, body.enters)),
            steps=self.steps(body.steps),
            outputs=self._sources(body.outputs),
        )

    def _boundary(self, boundary: RegionBoundary | None) -> RegionBoundary | None:
        if boundary is None:
            return None
        reads, wants = self._read(boundary.reads)
        return replace(boundary, reads=reads, wants=wants)

    def _sources(self, atoms: tuple[Atom, ...]) -> tuple[Atom, ...]:
        return tuple(self._source(atom)[0] for atom in atoms)

    def _source(self, atom: Atom) -> tuple[Atom, str]:
        """Return the operand and target dtype of a removed cast, or the atom."""
        found = self.taken.get(atom) if isinstance(atom, str) else None
        return found or (atom, "")

    def _read(
        self, atoms: tuple[Atom, ...]
    ) -> tuple[tuple[Atom, ...], tuple[str, ...]]:
        """Return the operands without casts, and the dtypes that they are read in."""
        pairs = [self._source(atom) for atom in atoms]
        sources = tuple(_as_number(atom, dtype) for atom, dtype in pairs)
        wants = tuple(dtype for atom, dtype in pairs if isinstance(atom, str))
        return sources, wants if any(wants) else ()


def _as_number(atom: Atom, dtype: str) -> Atom:
    """Return a number in the dtype that it was cast to."""
    if not isinstance(atom, Number) or not dtype:
        return atom
    return Number(np.asarray(atom.value, jnp.dtype(dtype)), dtype)


def _without_state_casts(program: Program) -> Program:
    """Return ``program`` without the final casts of its states.

    A cast with other users stays, unless promotion made it.
    """
    makers = {name: step for step in program.steps for name in step.results}
    uses = Counter(_uses(program))
    outputs = list(program.outputs)
    taken: set[str] = set()
    for index, state in program.states:
        atom = outputs[index]
        if not isinstance(atom, str) or atom not in makers:
            continue
        step = makers[atom]
        if step.primitive != CAST:
            continue
        if uses[atom] > 1 and not _is_promotion(step):
            continue
        (source,) = step.operands
        stored = dtype_name(program.avals[state])
        if isinstance(source, Number) or stored != dtype_name(program.avals[atom]):
            continue
        if is_float(stored) and is_float(dtype_name(program.avals[source])):
            outputs[index] = source
            taken.update(step.results if uses[atom] == 1 else ())
    steps = tuple(s for s in program.steps if not taken.intersection(s.results))
    return replace(program, steps=steps, outputs=tuple(outputs))


def _uses(program: Program) -> Iterator[str]:
    """Yield the names that are read, repeated for each use."""
    yield from names_of(program.outputs)
    for step in all_steps(program.steps):
        yield from names_of(step.operands)
        for body in step.bodies:
            yield from names_of(body.outputs)
