"""Read a program into a program graph."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from amprewrite.dtypes import is_float
from amprewrite.dtypes.fits import FEW, edges
from amprewrite.frameworks.jaxpr.compat.equations import (
    is_unravelled,
    source_line,
    transformations,
)
from amprewrite.frameworks.jaxpr.compat.tracers import is_tracer
from amprewrite.frameworks.jaxpr.compat.untyped import lax
from amprewrite.frameworks.jaxpr.program.program import (
    CONTRACTIONS,
    SCALE,
    Atom,
    Number,
    Program,
    RegionBoundary,
    Step,
    all_steps,
    canonical_name,
    dtype_name,
    names_of,
)
from amprewrite.frameworks.jaxpr.program.scopes import WRAPPED, module_path
from amprewrite.ir import ABS_SQUARE, Op, ProgramGraph, Value, check_graph
from amprewrite.ir.graph import UNKNOWN_TRIPS, ValueKind
from amprewrite.marks import MARKS

LARGEST = 2**22
"""Number of elements of the largest closed-over array that is looked into."""


def read(program: Program, kinds: Mapping[str, ValueKind]) -> ProgramGraph:
    """Return the graph of ``program``.

    Args:
        program: The inlined program.
        kinds: Kind of the inputs that are more than inputs, such as parameters.
    """
    reader = _Reader(program)
    outer: dict[str, ValueKind] = {
        **{name: kinds.get(name, "input") for name in program.inputs},
        **dict.fromkeys(program.constants, "constant"),
    }
    values = {name: reader.value(name, kind) for name, kind in outer.items()}
    for name, array in program.constants.items():
        values[name] = replace(values[name], numbers=_edges_of(array))
    ops = tuple(_deciding(reader.ops(program.steps), program))
    made = (name for op in ops for name in op.results)
    values.update({name: reader.value(name, "result") for name in made})
    outputs = names_of(program.outputs)
    return check_graph(ProgramGraph(values, ops, outputs, _states(program)))


def _states(program: Program) -> tuple[tuple[int, str], ...]:
    """Return the states by graph position; numbers among the outputs do not count."""
    named = [i for i, atom in enumerate(program.outputs) if isinstance(atom, str)]
    return tuple((named.index(i), name) for i, name in program.states if i in named)


def _deciding(ops: Iterable[Op], program: Program) -> Iterator[Op]:
    """Yield ``ops``, those marked that make the result of a loop's test."""
    loops = (s for s in all_steps(program.steps) if s.primitive == "while")
    tests = {step.bodies[0].outputs[0] for step in loops if step.bodies}
    for op in ops:
        yield op if tests.isdisjoint(op.results) else replace(op, decides=True)


class _Reader:
    def __init__(self, program: Program) -> None:
        self.avals = program.avals
        self.types: dict[int, tuple[str, tuple[int | str, ...]]] = {}  # many are alike

    def value(self, name: str, kind: ValueKind) -> Value:
        aval = self.avals[name]
        found = self.types.get(id(aval))
        if found is None:
            extents = getattr(aval, "shape", ())
            shape = tuple([d if isinstance(d, int) else str(d) for d in extents])
            found = self.types[id(aval)] = dtype_name(aval), shape
        return Value(name, *found, kind)

    def ops(self, steps: Iterable[Step], trips: int = 1) -> Iterator[Op]:
        """Yield the ops of ``steps``, with a trip count of ``trips``."""
        for step in steps:
            if not step.bodies:
                yield self._op(step, trips)
                continue
            inside = trips * _turns(step)
            for body in step.bodies:
                yield from self._boundaries(step, body.enters, body.region, trips)
                yield from self.ops(body.steps, inside)
            turns = _turned(step)
            for op in self._boundaries(step, step.leaves, step.region, inside):
                yield replace(op, turns=turns[op.name]) if op.name in turns else op

    def _boundaries(
        self,
        step: Step,
        boundaries: Iterable[RegionBoundary | None],
        region: str,
        trips: int,
    ) -> Iterator[Op]:
        for boundary in boundaries:
            if boundary is not None:
                yield Op(
                    name=boundary.op,
                    canonical=boundary.kind,
                    native=step.primitive,
                    operands=names_of(boundary.reads),
                    results=(boundary.makes,),
                    path=module_path(step.scopes),
                    source=_source(step),
                    calls=step.calls,
                    region=region,
                    reads=self._reads(boundary.reads, boundary.wants),
                    trips=trips,
                )

    def _op(self, step: Step, trips: int) -> Op:
        primitive = step.primitive
        canonical = ABS_SQUARE if step.conjugates else canonical_name(primitive)
        named = ""
        if canonical == "cast" and self._means_real_part(step):
            canonical = "real"
        if canonical == "cast":
            named = self._dtype(step.results[0])
        operands = names_of(step.operands)
        literals = ()
        if len(operands) < len(step.operands):
            literals = tuple(_literals(step.operands))
        if primitive == SCALE:  # its forward and backward factor are parameters
            params = step.eqn.params
            literals = (*literals, params["forward"], params["backward"])
        if canonical == "expand" and not operands:
            canonical = "full"
        return Op(
            name=step.name,
            canonical=canonical,
            native=primitive,
            operands=operands,
            results=step.results,
            path=module_path(step.scopes),
            source=_source(step),
            calls=step.calls,
            region=step.region,
            fence=step.fence or self._asked_by_parameters(step),
            literals=literals,
            dtype_argument=named,
            chosen=step.chosen,
            contracted=self._contracted(step),
            accumulates=primitive in CONTRACTIONS,
            asked=_asked(step.scopes),
            reads=self._reads(step.operands, step.wants) if step.wants else (),
            trips=trips,
        )

    def _reads(self, atoms: Iterable[Atom], wants: tuple[str, ...]) -> tuple[str, ...]:
        """Return the dtypes in which operands are read; empty if all as they are."""
        pairs = zip(names_of(atoms), wants, strict=False)
        return tuple(wanted or self._dtype(name) for name, wanted in pairs)

    def _means_real_part(self, step: Step) -> bool:
        """Return whether a cast of complex numbers to real ones loses nothing of value.

        Examples are the derivative of a cast to complex numbers, and ``ravel_pytree``
        when it splits a joined array; JAX warns of neither.
        """
        new = np.dtype(step.eqn.params["new_dtype"])
        source = self._dtype(step.operands[0])
        if new.kind == "c" or not source.startswith("complex"):
            return False
        derived = "transpose" in transformations(step.stack)
        return derived or is_unravelled(step.eqn.source_info.traceback)

    def _asked_by_parameters(self, step: Step) -> str:
        """Return the precision that a contraction's parameters ask for, if any."""
        params = step.eqn.params
        precision: Any = params.get("precision")
        wanted = params.get("preferred_element_type")
        if precision is None and wanted is None:  # as most ops have neither
            return ""
        several = isinstance(precision, tuple)
        parts: list[Any] = [*precision] if several else [precision]
        plain = (None, lax.Precision.DEFAULT)
        if any(part not in plain for part in parts):
            return f"the model sets precision={parts[0]}"
        if wanted is None:
            return ""
        made = dtype_name(step.eqn.outvars[0].aval)
        wants = step.wants or ("",) * len(step.operands)
        if any(dtype != made for dtype in self._reads(step.operands, wants)):
            return f"the model sets preferred_element_type={made}"
        return ""

    def _dtype(self, atom: Atom) -> str:
        return atom.dtype if isinstance(atom, Number) else dtype_name(self.avals[atom])

    def _contracted(self, step: Step) -> int | None:
        if step.primitive != "dot_general":
            return None
        (contracting, _), _ = step.eqn.params["dimension_numbers"]
        shape = step.eqn.invars[0].aval.shape
        extents = [shape[axis] for axis in contracting]
        if not all(isinstance(extent, int) for extent in extents):
            return None
        return int(np.prod(extents)) if extents else 1


def _turned(step: Step) -> dict[str, tuple[str, ...]]:
    """Return the values that each carry is in the next iteration, by name of its op."""
    carries = [
        [e.makes for e in body.enters if e is not None and e.kind == "carry"]
        for body in step.bodies
    ]
    leaves = [leave for leave in step.leaves if leave and leave.kind == "carry"]
    rows = zip(*carries, strict=True) if leaves else ()
    return {leave.op: row for leave, row in zip(leaves, rows, strict=True)}


def _edges_of(array: Any) -> tuple[float, ...]:
    """Return the numbers of a closed-over array that a narrow format has not.

    See :func:`amprewrite.dtypes.fits.edges`; of a table, the least and the greatest. A
    tracer has none, nor has a large array, which is a weight.
    """
    size = getattr(array, "size", 0)
    if is_tracer(array) or not 0 < size <= LARGEST or not is_float(str(array.dtype)):
        return ()
    values = np.asarray(array)
    table = size > FEW
    if table:
        values = np.unique(np.stack((values.min(), values.max())))
        table = values.size > 1
    return edges(map(float, values.reshape(-1)), table=table)


def _source(step: Step) -> str:
    """Return the user's line of a step, or of the call of the function it is in."""
    return source_line(step.eqn.source_info.traceback) or step.called_at


def _turns(step: Step) -> int:
    """Return the trip count of the bodies of a step.

    Every branch counts as taken once: the choice is unknown.
    """
    if step.primitive == "while":
        return UNKNOWN_TRIPS
    length = step.eqn.params["length"] if step.primitive == "scan" else 1
    return length if isinstance(length, int) else 1


def _literals(atoms: Iterable[Atom]) -> Iterator[float]:
    for atom in atoms:
        if isinstance(atom, Number) and is_float(atom.dtype):
            yield float(atom.value)


@lru_cache(maxsize=4096)
def _asked(scopes: tuple[str, ...]) -> Any:
    """Return the precision asked for by the innermost marker, if any."""
    parts = [part for scope in scopes for part in scope.split("/")]
    plain = [match[1] for part in parts if (match := WRAPPED.match(part))]
    return next((MARKS[part] for part in reversed(plain) if part in MARKS), "")
