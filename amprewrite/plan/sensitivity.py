"""How much each rounding moves the outputs: what is asked for, and what was found.

Both are plain data, so that frameworks measure and passes plan without each other.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf, isfinite, sqrt

from amprewrite.ir import ProgramGraph
from amprewrite.plan.model import Plan

Key = str | tuple[str, str]
"""A value that is stored low, or (value, op): that op reads it low."""


DIRECTIONS = 4
"""Random directions in the outputs, at least; the estimate of one rounding has a
standard deviation of sqrt(2 / 4), that of a sum over many much less."""

SAMPLES = 160
"""Roundings times directions, at least, in programs with few roundings: the squared
error of all together then has a standard deviation of about sqrt(2 / 160), 11 %."""


@dataclass(frozen=True)
class Probes:
    """What may be rounded, and so is to be measured.

    Attributes:
        low: Name of the low dtype.
        full: Name of the full dtype.
        stored: Values that an op may make low.
        read: (value, op) for each value that an op may read low while it is full.
        saturated: Values of which finite numbers beyond the range of low become its
            largest ones, and no infinities: additive masks.
        weights: Values that are weights, or weights moved about: only reading them
            low is an error, however they are stored.
    """

    low: str
    full: str
    stored: frozenset[str]
    read: frozenset[tuple[str, str]]
    saturated: frozenset[str] = frozenset()
    weights: frozenset[str] = frozenset()

    @property
    def directions(self) -> int:
        """How many directions to take: more where there are few roundings."""
        count = len(self.stored) + len(self.read)
        return max(DIRECTIONS, min(-(-SAMPLES // max(count, 1)), SAMPLES // 4))


@dataclass(frozen=True)
class Sensitivity:
    """First-order errors of the outputs, one number for each rounding.

    A number is the mean squared error of all outputs together, relative to their mean
    square: 1e-6 is a relative L2 error of 1e-3. Infinite means that low precision
    cannot hold the values. Numbers of different roundings add up.

    Attributes:
        stored: By value: if it is stored low.
        read: By (value, op): if the op reads it low while it is stored full.
        directions: Number of random directions in the output that were averaged.
        peaks: For values that low precision cannot hold, the largest magnitude.
        weights: As in :class:`Probes`.
        moves: How far each rounding moves the outputs along each direction; the
            number is the mean of their squares. Roundings of one value by several
            readers are the same rounding: what they move adds up before it is squared.
    """

    stored: Mapping[str, float]
    read: Mapping[tuple[str, str], float]
    directions: int
    peaks: Mapping[str, float] = field(default_factory=dict[str, float])
    weights: frozenset[str] = frozenset()
    moves: Mapping[Key, tuple[float, ...]] = field(
        default_factory=dict[Key, tuple[float, ...]]
    )

    @property
    def all(self) -> dict[Key, float]:
        """All numbers in one mapping."""
        return {**self.stored, **self.read}

    def errors(self, multiplier: float, pin: int) -> dict[Key, float]:
        """Return what each rounding costs.

        Args:
            multiplier: Bytes for a mean squared relative error of 1.
            pin: What makes a rounding too dear to be chosen, in bytes: more than the
                whole program costs. Nothing costs more, so that sums do not overflow.
        """
        return {
            key: min(error * multiplier, pin) if isfinite(error) else pin
            for key, error in self.all.items()
            if error
        }

    def made(self, plan: Plan, graph: ProgramGraph) -> dict[Key, float]:
        """Return the errors of the roundings that ``plan`` makes."""
        return {key: self.all[key] for key in self.roundings(plan, graph)}

    def roundings(self, plan: Plan, graph: ProgramGraph) -> Iterator[Key]:
        """Yield the keys of all that ``plan`` rounds, as placement counts them."""
        rounded: set[str] = set()
        for op in graph.ops:
            decision = plan.by_op[op.name]
            pairs = dict(
                zip(reversed(op.operands), reversed(decision.operands), strict=True)
            )
            for name, dtype in pairs.items():
                asked = (name, op.name) in self.read and name not in rounded
                if dtype == plan.low and asked:
                    yield name, op.name
            for name, dtype in zip(op.results, decision.results, strict=True):
                if dtype == plan.low and graph.is_dtype(name, plan.full):
                    rounded.update({name} - self.weights)
                    if name in self.stored:
                        yield name

    def predicted(self, plan: Plan, graph: ProgramGraph) -> float:
        """Return the first-order relative L2 error of the outputs under ``plan``."""
        return sqrt(sum(self.made(plan, graph).values()))

    def shared(self, plan: Plan, graph: ProgramGraph) -> float:
        """Return :meth:`predicted`, roundings of one value taken as the same one."""
        return sqrt(sum(self._parts(plan, graph).values()))

    def shares(self, plan: Plan, graph: ProgramGraph) -> dict[str, float]:
        """Return the part of the predicted squared error that each op makes.

        A rounding belongs to the ops that read the value low, in equal parts: if they
        wanted it full, it would be kept full. What only moves values hands it on. Where
        no op reads it low, it belongs to what makes it. The parts add up to 1; one is
        below zero if it undoes errors of others.
        """
        found: dict[str, float] = {}
        for key, error in self._parts(plan, graph).items():
            value = key if isinstance(key, str) else key[0]
            maker = graph.producer.get(value)
            readers = (
                _low_readers(plan, graph, value)
                if isinstance(key, str)
                else _through(plan, graph, key[1])
            )
            ops = sorted(readers) or [maker.name if maker else value]
            for op in ops:
                found[op] = found.get(op, 0.0) + error / len(ops)
        total = sum(found.values())
        if not 0.0 < total < inf:
            return {}
        return {op: error / total for op, error in found.items()}

    def _parts(self, plan: Plan, graph: ProgramGraph) -> dict[Key, float]:
        """Return the part of each rounding that ``plan`` makes in the squared error.

        That of a read value is its move times those of all readers of that value.
        """
        made = self.made(plan, graph)
        readers: dict[str, list[Key]] = {}
        for key in made:
            if not isinstance(key, str) and self.moves.get(key):
                readers.setdefault(key[0], []).append(key)
        for keys in readers.values():
            if len(keys) == 1 or not all(isfinite(made[key]) for key in keys):
                continue
            rows = [self.moves[key] for key in keys]
            together = [sum(column) for column in zip(*rows, strict=True)]
            for key, row in zip(keys, rows, strict=True):
                pairs = zip(row, together, strict=True)
                made[key] = sum(one * all_ for one, all_ in pairs) / len(together)
        return made


def _low_readers(plan: Plan, graph: ProgramGraph, value: str) -> set[str]:
    """Return the ops that compute with ``value`` in low precision, moved or not."""
    found: set[str] = set()
    for op, _ in graph.users[value]:
        decision = plan.by_op[op.name]
        pairs = dict(
            zip(reversed(op.operands), reversed(decision.operands), strict=True)
        )
        if pairs.get(value) == plan.low:
            found |= _through(plan, graph, op.name)
    return found


def _through(plan: Plan, graph: ProgramGraph, name: str) -> set[str]:
    """Return an op; the low readers of its results if it only moves values."""
    if plan.by_op[name].op_class != "follow":
        return {name}
    results = graph.op_by_name[name].results
    readers = [_low_readers(plan, graph, result) for result in results]
    return set[str]().union(*readers) or {name}


def probes_of(plan: Plan, graph: ProgramGraph) -> Probes:
    """Return the roundings that ``plan`` makes, to be measured.

    A value that an op makes low is rounded there, unless the op only moves what was
    rounded before; a value that is full is rounded where an op reads it low.
    """
    stored: set[str] = set()
    read: set[tuple[str, str]] = set()
    rounded: set[str] = set()
    for op in graph.ops:
        decision = plan.by_op[op.name]
        pairs = dict(
            zip(reversed(op.operands), reversed(decision.operands), strict=True)
        )
        for name, dtype in pairs.items():
            full = graph.is_dtype(name, plan.full) and name not in rounded
            if dtype == plan.low and full:
                read.add((name, op.name))
        for name, dtype in zip(op.results, decision.results, strict=True):
            if dtype != plan.low or not graph.is_dtype(name, plan.full):
                continue
            rounded.add(name)
            follows = decision.op_class == "follow" and op.operands
            moved = follows and pairs.get(op.operands[0]) == plan.low
            if not moved:
                stored.add(name)
    saturated = {cast.value for cast in plan.casts if cast.saturate}

    def is_constant(name: str) -> bool:
        """Whether a value stays what it is; one that is written to differs in time."""
        return graph.storage(name) not in graph.written

    return Probes(
        low=plan.low,
        full=plan.full,
        stored=frozenset(filter(is_constant, stored)),
        read=frozenset((name, op) for name, op in read if is_constant(name)),
        saturated=frozenset(saturated),
    )


Measure = Callable[[Plan], float | None]
"""Gives the relative L2 error of the program that a plan makes; None if it has none,
because the program draws random numbers."""


@dataclass(frozen=True)
class Measurements:
    """What a framework has measured of a program, and can measure of its plans.

    Attributes:
        graph: The program.
        training: Whether parameters keep their dtype, to be trained.
        captured: How the program was captured, for the plan.
        sensitivity: The error of each rounding.
        target: Largest relative L2 error of the outputs.
        measure: Gives that error for the program of a plan.
    """

    graph: ProgramGraph
    training: bool
    captured: str
    sensitivity: Sensitivity
    target: float
    measure: Measure
