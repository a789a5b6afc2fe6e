"""Restore the user casts that a float32 trace lacks, from a second, low trace.

JAX omits a cast of float32 to itself, so ``x.astype(jnp.float32)`` and
``y.astype(x.dtype)`` are not in a float32 program. A trace of the same function on
low-precision arrays has both: the first begins a part that the model keeps in full
precision, the second ends it. The two programs are aligned step by step, and each of
these casts is inserted in the first, where its reader reads the same value. Promotions
by JAX itself are not user casts, nor are casts inside JAX's own functions.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

from amprewrite.frameworks.jaxpr.compat import tracers
from amprewrite.frameworks.jaxpr.program.inline import Names, inline
from amprewrite.frameworks.jaxpr.program.program import (
    Atom,
    Body,
    Program,
    RegionBoundary,
    Step,
    all_steps,
    dtype_name,
)

if TYPE_CHECKING:
    from amprewrite.ir.graph import Chosen

CONVERSION = "convert_element_type"


@dataclass(frozen=True)
class Second:
    """A second trace of a function, in low precision, which reveals its casts.

    Attributes:
        trace: Function that traces on low arrays; also returns the number of casts to
            the full dtype that this trace omits too.
        casts: Function that returns whether the first trace omits a written cast; asked
            only if the second trace fails.
        low: Name of the low dtype.
        full: Name of the full dtype.
    """

    trace: Callable[[], tuple[Any, int]]
    casts: Callable[[], bool]
    low: str
    full: str = "float32"

    def restore(self, program: Program) -> tuple[Program, tuple[str, ...]]:
        """Return ``program`` with the omitted user casts, and warnings about them."""
        try:
            closed, omitted = self.trace()
            second = inline(closed)
        except Exception as error:  # noqa: BLE001  # the user's code, on unusual dtypes
            if not self.casts():  # a function that refuses low arrays casts none
                return program, ()
            reason = str(error).strip().split("\n")[0]
            why = f"its second trace, in {self.low}, failed ({type(error).__name__}: "
            return program, (self._unseen(f"{why}{reason})"),)
        notes: tuple[str, ...] = ()
        if omitted and self._closes_over_full(program):
            why = (
                f"a value it closes over is {self.full} also in a trace in {self.low}, "
                f"where {omitted} of them change nothing; pass it as an argument"
            )
            notes = (self._unseen(why),)
        return restore_casts(program, second, (self.low, self.full)), notes

    def _unseen(self, why: str) -> str:
        return (
            f"casts to {self.full} that the function may write are not seen: {why}; "
            f"mark ops that must stay full with amprewrite.full_precision"
        )

    def _closes_over_full(self, program: Program) -> bool:
        avals = (program.avals[name] for name in program.constants)
        return any(dtype_name(aval) == self.full for aval in avals)


def restore_casts(
    program: Program, second: Program, dtypes: tuple[str, str]
) -> Program:
    """Return ``program`` with the casts that only ``second`` has.

    Args:
        program: The program traced in full precision.
        second: The same function, traced in low precision.
        dtypes: Names of the low and the full dtype.
    """
    return _Restorer(program, second, dtypes).restored()


Casts = Mapping[tuple[Atom, str], str]
"""Results of the casts of the first program in one body, by value and dtype."""


class _Restorer:
    def __init__(
        self, program: Program, second: Program, dtypes: tuple[str, str]
    ) -> None:
        self.first, self.second = program, second
        self.low, self.full = dtypes
        self.avals = dict(program.avals)
        self.names = Names(
            (*program.avals, *(s.name for s in all_steps(program.steps)))
        )
        self.same = dict(zip(second.inputs, program.inputs, strict=True))
        self.same.update(zip(second.constants, program.constants, strict=False))
        self.origin: dict[str, str] = {}  # of a restored value, the one it casts

    def restored(self) -> Program:
        first, second = self.first, self.second
        steps = self._steps(first.steps, second.steps)
        outputs = tuple(map(self._read, first.outputs, second.outputs))
        return replace(first, steps=steps, outputs=outputs, avals=self.avals)

    def _steps(self, first: Sequence[Step], second: Sequence[Step]) -> tuple[Step, ...]:
        """Return the steps of a body, with the casts that only ``second`` has."""
        casts = {
            (step.operands[0], dtype_name(self.avals[step.results[0]])): made
            for step in first
            if step.primitive == CONVERSION
            for made in step.results
        }
        pairs = dict(self._pairs(first, second))
        steps: list[Step] = []
        waiting: list[Step] = []  # casts of the second program for the next step
        done = 0
        for index, step in enumerate(second):
            if self._converts(step):
                waiting += self._converted(step, casts)
            elif index in pairs:
                place = pairs[index]
                steps += [*first[done:place], *waiting]
                waiting.clear()
                steps.append(self._paired(first[place], step))
                done = place + 1
        return (*steps, *first[done:], *waiting)

    def _pairs(
        self, first: Sequence[Step], second: Sequence[Step]
    ) -> Iterator[tuple[int, int]]:
        """Yield pairs of matching steps of ``second`` and ``first``, by position."""
        kept = [i for i, step in enumerate(second) if not self._converts(step)]
        one = [step.primitive for step in first]
        other = [second[i].primitive for i in kept]
        if one == other:
            yield from zip(kept, range(len(one)), strict=True)
            return
        matcher = SequenceMatcher(None, other, one, autojunk=False)
        for start, place, size in matcher.get_matching_blocks():
            for offset in range(size):
                yield kept[start + offset], place + offset

    def _converts(self, step: Step) -> bool:
        """Return whether a step converts between the low and the full dtype."""
        if step.primitive != CONVERSION or not isinstance(step.operands[0], str):
            return False
        source = dtype_name(self.second.avals[step.operands[0]])
        target = dtype_name(self.second.avals[step.results[0]])
        return {source, target} == {self.low, self.full}

    def _converted(self, step: Step, casts: Casts) -> Iterator[Step]:
        """Yield a user cast to insert; one by JAX is an alias of its operand."""
        source, (made,) = self.same.get(str(step.operands[0])), step.results
        if source is None:
            return
        twin = casts.get((source, dtype_name(self.second.avals[made])))
        if twin is not None:  # a cast that is in both programs
            self.same[made] = twin
            return
        if not tracers.is_written_cast(step.eqn.source_info.traceback):
            self.same[made] = source
            return
        to_full = dtype_name(self.second.avals[made]) == self.full
        chosen: Chosen = "pinned" if to_full else "follows"
        name = self.names.fresh("astype")
        self.avals[name] = self.avals[source]
        self.origin[name] = self.origin.get(source, source)
        self.same[made] = name
        yield replace(
            step, name=name, operands=(source,), results=(name,), chosen=chosen
        )

    def _read(self, first: Atom, second: Atom) -> Atom:
        """Return the restored cast that the second program reads, if any."""
        if not (isinstance(first, str) and isinstance(second, str)):
            return first
        same = self.same.get(second, "")
        return same if self.origin.get(same) == first else first

    def _paired(self, first: Step, second: Step) -> Step:
        """Return a step of ``first`` with its operands replaced by restored casts."""
        if len(first.operands) == len(second.operands):
            operands = tuple(map(self._read, first.operands, second.operands))
            first = replace(first, operands=operands)
        alike = len(first.bodies) == len(second.bodies)
        if first.bodies and alike:
            pairs = zip(first.bodies, second.bodies, strict=True)
            bodies = tuple(self._body(one, other) for one, other in pairs)
            leaves = self._boundaries(first.leaves, second.leaves)
            first = replace(first, bodies=bodies, leaves=leaves)
        if len(first.results) == len(second.results):
            self.same.update(zip(second.results, first.results, strict=True))
        return first

    def _body(self, first: Body, second: Body) -> Body:
        if len(first.inputs) != len(second.inputs):
            return first
        enters = self._boundaries(first.enters, second.enters)
        for one, other in zip(first.inputs, second.inputs, strict=True):
            if isinstance(one, str) and isinstance(other, str):
                self.same.setdefault(other, one)
        steps = self._steps(first.steps, second.steps)
        return replace(first, enters=enters, steps=steps)

    def _boundaries(
        self,
        first: tuple[RegionBoundary | None, ...],
        second: tuple[RegionBoundary | None, ...],
    ) -> tuple[RegionBoundary | None, ...]:
        """Return the boundaries of a step or body with restored casts as sources.

        A branch saves other values for its derivative where it converts other values:
        then their numbers differ, and positions do not match.
        """
        if len(first) != len(second):
            return first
        return tuple(map(self._boundary, first, second))

    def _boundary(
        self, first: RegionBoundary | None, second: RegionBoundary | None
    ) -> RegionBoundary | None:
        if first is None or second is None or len(first.reads) != len(second.reads):
            return first
        return replace(first, reads=tuple(map(self._read, first.reads, second.reads)))
