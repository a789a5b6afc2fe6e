"""Run a program with regions to compute again in the backward pass.

The steps from the first op of a region to the last reader of its values form a segment,
which runs under ``jax.checkpoint``. Readers are in it, because the derivative of a
contraction keeps its operands: outside of the segment it would keep a computed one.
The policy saves kept values, by name, and the results of all primitives that must not
run twice; JAX drops those of them that no derivative reads. A program that is not
differentiated runs as without a segment.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from amprewrite.frameworks.jaxpr.compat.untyped import ad_checkpoint, jax
from amprewrite.frameworks.jaxpr.executor import Env
from amprewrite.frameworks.jaxpr.interpret.interpreter import Writer
from amprewrite.frameworks.jaxpr.program.program import (
    Step,
    all_steps,
    canonical_name,
    names_of,
    reads_of,
    sources_of,
)
from amprewrite.ops import traits_of
from amprewrite.ops.repeatable import repeats

LOOP = "scan"
"""The loop that JAX differentiates in reverse."""

RULES = frozenset(("custom_jvp_call", "custom_vjp_call"))
"""Steps with bodies that may run again as a whole."""


@dataclass(frozen=True)
class Segment:
    """Successive steps, run under one ``jax.checkpoint``.

    Attributes:
        steps: The steps.
        reads: Names of all values that each step, or its bodies, reads, one for each
            use; those of the last step first, as gradients add up.
        results: Names of the values that later steps read.
    """

    steps: tuple[Step, ...]
    reads: tuple[tuple[str, ...], ...]
    results: tuple[str, ...]


Part = Step | Segment


class _Uses(dict[str, Any]):
    """Values inside a segment, with an argument for each use of an outer one.

    The gradients of the uses then add up as without the segment: one after the other,
    to the same bits. With one argument they would be added to each other first.
    """

    def __init__(
        self, outer: Env, uses: Sequence[list[str]], values: Sequence[list[Any]]
    ) -> None:
        """Take the constants, and the arguments of each step, the last one first."""
        super().__init__(outer)
        self._left: dict[str, list[Any]] = {}
        for names, given in zip(reversed(uses), reversed(values), strict=True):
            for name, value in zip(names, given, strict=True):
                self._left.setdefault(name, []).append(value)
                self[name] = value

    def __getitem__(self, name: str) -> Any:
        left = self._left.get(name)
        if left is None:
            return super().__getitem__(name)
        return left.pop(0) if len(left) > 1 else left[0]


class RecomputingWriter(Writer):
    """Executor that runs the regions of a plan under ``jax.checkpoint``."""

    _inside = False

    def run(self, steps: Iterable[Step], env: Env) -> None:
        """Run ``steps`` and store their results in ``env``."""
        listed = tuple(steps)
        parts = self._parts.get(listed[0].name) if listed else None
        if parts is None or self._inside:
            super().run(listed, env)
            return
        for part in parts:
            if isinstance(part, Segment):
                self._run_segment(part, env)
            else:
                super().run((part,), env)

    def on_result(self, step: Step, name: str, value: Any) -> Any:
        """Return a result; named, if it is kept."""
        value = super().on_result(step, name, value)
        if not self._inside or name not in self._kept:
            return value
        return ad_checkpoint.checkpoint_name(value, _name(name))

    def as_read(self, op: str, index: int, value: Any) -> Any:
        """Return ``value`` as an op reads it; named, if this cast of it is kept."""
        made = super().as_read(op, index, value)
        name = self._kept_casts.get((op, index)) if self._inside else None
        return made if name is None else ad_checkpoint.checkpoint_name(made, name)

    def _run_segment(self, segment: Segment, env: Env) -> None:
        outer = self.constants(env)
        known = env.keys() - outer.keys()
        uses = [[name for name in reads if name in known] for reads in segment.reads]

        def run(values: list[list[Any]]) -> list[Any]:
            inner = _Uses(outer, uses, values)
            self._inside = True
            try:
                self.run(segment.steps, inner)
            finally:
                self._inside = False
            return [inner[name] for name in segment.results]

        in_loop = bool(segment.steps[0].region)  # the passes are loops apart
        again = jax.checkpoint(run, policy=self._is_saved, prevent_cse=not in_loop)
        made = again([[env[name] for name in names] for names in uses])
        env.update(zip(segment.results, made, strict=True))

    def _is_saved(self, primitive: Any, *_: Any, **params: Any) -> bool:
        """Return whether ``jax.checkpoint`` saves the result of a primitive."""
        if primitive.name == "name":
            return params["name"] in self._names
        canonical = canonical_name(primitive.name)
        return not repeats(canonical, traits_of(canonical, primitive.name).group)

    @cached_property
    def _kept(self) -> frozenset[str]:
        """The op results that are kept in the dtype in which they are stored."""
        stored = self.context.stored
        pieces = self.plan.recompute.kept
        return frozenset(k.value for k in pieces if stored.get(k.value) == k.dtype)

    @cached_property
    def _kept_casts(self) -> Mapping[tuple[str, int], str]:
        """The name of each use that reads a kept cast."""
        kept = {(k.value, k.dtype) for k in self.plan.recompute.kept if k.bytes}
        return {
            use: _name(cast.value, cast.to_dtype)
            for cast in self.plan.casts
            for use in cast.uses
            if (cast.value, cast.to_dtype) in kept
        }

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset((*map(_name, self._kept), *self._kept_casts.values()))

    @cached_property
    def _parts(self) -> Mapping[str, tuple[Part, ...]]:
        """The parts of each list of steps with segments, by name of its first step."""
        program = self.context.program
        lists = [(program.steps, frozenset(names_of(program.outputs)))]
        lists += _loops(program.steps)
        regions = [frozenset(region.ops) for region in self.plan.recompute.regions]
        found: dict[str, tuple[Part, ...]] = {}
        for steps, outputs in lists:
            spans = _spans(steps, regions)
            if spans:
                found[steps[0].name] = tuple(_split(steps, spans, outputs))
        return found


def _name(value: str, dtype: str = "") -> str:
    return f"amprewrite {value} {dtype}".rstrip()


def _loops(
    steps: Iterable[Step],
) -> Iterator[tuple[tuple[Step, ...], frozenset[str]]]:
    """Yield the bodies of loops at every depth: steps, and names that leave them."""
    for step in steps:
        if step.primitive == LOOP:
            (body,) = step.bodies
            left = *names_of(body.outputs), *sources_of(step.leaves)
            yield body.steps, frozenset(left)
            yield from _loops(body.steps)


def _spans(
    steps: Sequence[Step], regions: Iterable[frozenset[str]]
) -> list[tuple[int, int]]:
    """Return the first and last position of each segment, apart and in order."""
    places: dict[str, int] = {}
    readers: dict[str, int] = {}
    for position, step in enumerate(steps):
        places.update((inner.name, position) for inner in all_steps((step,)))
        readers.update((name, position) for name in reads_of(step))
    merged: list[tuple[int, int]] = []
    found = sorted(
        _span(steps, {places[op] for op in ops if op in places}, readers)
        for ops in regions
        if any(op in places for op in ops)
    )
    for first, last in found:
        if merged and first <= merged[-1][1]:
            begun, before = merged.pop()
            merged.append((begun, max(last, before)))
        else:
            merged.append((first, last))
    whole = [part for span in merged for part in _between_fences(steps, *span)]
    again = {places[op] for ops in regions for op in ops if op in places}
    return [(a, b) for a, b in whole if any(a <= p <= b for p in again)]


def _span(
    steps: Sequence[Step], positions: set[int], readers: Mapping[str, int]
) -> tuple[int, int]:
    """Return the positions of the first op of a region and of its last reader."""
    made = (name for p in positions for name in steps[p].results)
    return min(positions), max((*positions, *(readers.get(n, -1) for n in made)))


def _between_fences(
    steps: Sequence[Step], first: int, last: int
) -> Iterator[tuple[int, int]]:
    """Yield the parts of a span between steps that stay outside of segments."""
    start = first
    for position in range(first, last + 1):
        if _stays_outside(steps[position]):
            if start < position:
                yield start, position - 1
            start = position + 1
    if start <= last:
        yield start, last


def _stays_outside(step: Step) -> bool:
    """Return whether a step is a loop or a branch, or does more than compute."""
    if step.bodies and step.primitive not in RULES:
        return True
    return bool(step.eqn.effects)


def _split(
    steps: tuple[Step, ...],
    spans: Iterable[tuple[int, int]],
    outputs: frozenset[str],
) -> Iterator[Part]:
    """Yield the steps outside of segments, and the segments, in order."""
    position = 0
    for first, last in spans:
        yield from steps[position:first]
        position = last + 1
        inside = steps[first:position]
        later = outputs.union(*(reads_of(step) for step in steps[position:]))
        made = [name for step in inside for name in step.results if name in later]
        reads = (tuple(reads_of(step)) for step in reversed(inside))
        yield Segment(inside, tuple(reads), tuple(made))
    yield from steps[position:]
