"""Sensitivity of the outputs to each rounding: the requested probes, and the results.

Both are plain data, so that frameworks measure and passes plan independently.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf, isfinite, sqrt

from amprewrite.ir import Op, ProgramGraph
from amprewrite.ir.graph import factor_indices
from amprewrite.plan.facts import Gradients
from amprewrite.plan.model import GradientError, Plan
from amprewrite.plan.uses import dtypes_read
from amprewrite.policy.model import Scaling


@dataclass(frozen=True, slots=True, order=True)
class EightBits:
    """Key of the roundings of one contraction: its factors, to an 8-bit format.

    Attributes:
        op: Name of the contraction.
        format: Name of the format of its operands; empty if only gradients are rounded.
        scaling: Scale of the rounded tensors, ``none`` or ``current``.
    """

    op: str
    format: str
    scaling: Scaling


Key = str | tuple[str, str] | EightBits
"""Key of a rounding: a stored value, (value, op), or the factors of a contraction.

The second is of a value that only that op rounds as it reads it; the last ones are
rounded to 8 bits together.
"""


DIRECTIONS = 4
"""Least number of random directions in the outputs.

The estimate of one rounding has a standard deviation of sqrt(2 / 4), that of a sum over
many much less.
"""

EIGHT_BIT_DIRECTIONS = 24
"""Least number of directions where contractions round to 8 bits.

The roundings of one contraction, such as the last one, may outweigh all others: the
estimate of its error alone has a standard deviation of sqrt(1 / 48), 14 %.
"""

SAMPLES = 160
"""Least product of roundings and directions, for programs with few roundings.

The squared error of all together then has a standard deviation of about sqrt(2 / 160),
11 %.
"""


@dataclass(frozen=True)
class Probes:
    """The roundings to measure.

    Attributes:
        low: Name of the low dtype.
        full: Name of the full dtype.
        stored: Values that an op may store low.
        read: (value, op) for each full value that an op may read low.
        saturated: Additive masks: finite numbers beyond the range of low become its
            largest numbers, not infinities.
        weights: Values that are weights, or moved weights: only reading them low is an
            error, however they are stored.
        eight: By contraction that may round to 8 bits: the operands that it multiplies.
        unpredicted: Contractions with operands that are written in place: their values
            change over time, and the error of 8 bits is unknown.
    """

    low: str
    full: str
    stored: frozenset[str]
    read: frozenset[tuple[str, str]]
    saturated: frozenset[str] = frozenset()
    weights: frozenset[str] = frozenset()
    eight: Mapping[EightBits, frozenset[str]] = field(
        default_factory=dict[EightBits, frozenset[str]]
    )
    unpredicted: frozenset[EightBits] = frozenset()

    @property
    def keys(self) -> tuple[Key, ...]:
        """Keys of all roundings, in a fixed order."""
        return (*sorted(self.stored), *sorted(self.read), *sorted(self.eight))

    def eight_bits_at(self, name: str, op: str) -> EightBits | None:
        """Return the key by which ``op`` rounds its operand ``name`` to 8 bits."""
        key = self._by_op.get(op)
        return key if key is not None and name in self.eight[key] else None

    @cached_property
    def _by_op(self) -> dict[str, EightBits]:
        return {key.op: key for key in self.eight}

    @property
    def directions(self) -> int:
        """Number of directions to take: more if there are few roundings."""
        count = len(self.stored) + len(self.read) + len(self.eight)
        least = EIGHT_BIT_DIRECTIONS if self.eight else DIRECTIONS
        return max(least, min(-(-SAMPLES // max(count, 1)), SAMPLES // 4))


@dataclass(frozen=True)
class Limit:
    """Limit on the sum of the errors of all roundings that a plan makes.

    Attributes:
        errors: Error of each rounding, 0 or more; others have none.
        bound: Largest sum. With an infinite one only infinite errors are avoided.
    """

    errors: Mapping[Key, float]
    bound: float


@dataclass(frozen=True)
class Sensitivity:
    """First-order error of the outputs caused by each rounding.

    An error is the mean squared error of all outputs together, relative to their mean
    square: 1e-6 is a relative L2 error of 1e-3. Infinite means that low precision
    cannot represent the values. Errors of different roundings add up.

    Attributes:
        stored: By value: its error if it is stored low.
        read: By (value, op): its error if the op reads it low while it is stored full.
        directions: Number of random directions in the output that were averaged.
        peaks: Largest magnitude of the values that low precision cannot represent.
        weights: As in :class:`Probes`.
        moves: Signed change of the outputs along each direction by each rounding; the
            error is the mean of the squares. Roundings of one value for several readers
            are the same rounding: their changes add up before they are squared.
        eight: By contraction: the error of rounding its factors to 8 bits.
        gradients: Errors of the parameters' gradients; None if they are not bounded.
    """

    stored: Mapping[str, float]
    read: Mapping[tuple[str, str], float]
    directions: int
    peaks: Mapping[str, float] = field(default_factory=dict[str, float])
    weights: frozenset[str] = frozenset()
    moves: Mapping[Key, tuple[float, ...]] = field(
        default_factory=dict[Key, tuple[float, ...]]
    )
    eight: Mapping[EightBits, float] = field(default_factory=dict[EightBits, float])
    gradients: Gradients | None = None

    @cached_property
    def all(self) -> Mapping[Key, float]:
        """The errors of all roundings in one mapping."""
        return {**self.stored, **self.read, **self.eight}

    @cached_property
    def eight_by_op(self) -> Mapping[str, EightBits]:
        """The key of each contraction that may round to 8 bits, by op."""
        return {key.op: key for key in self.eight}

    def without(self, unpredicted: Iterable[EightBits]) -> "Sensitivity":
        """Return it with infinite errors of contractions that are not predicted."""
        return replace(self, eight={**self.eight, **dict.fromkeys(unpredicted, inf)})

    def limits(self, bound: float) -> tuple[Limit, ...]:
        """Return limits that plans keep whose larger predicted error is within a bound.

        Args:
            bound: Largest relative L2 error, in units of the outputs'.
        """
        limits = [Limit(self.all, bound * bound)]
        if self.gradients is not None:
            share = self.gradients.unit**2 * self.gradients.low_share
            errors = {
                key: share * error
                for key, error in self.all.items()
                if not isinstance(key, EightBits)
            }
            eight = {
                key: self.gradients.unit**2 * self.gradients.square(key.op)
                for key in self.eight
            }
            limits.append(Limit({**errors, **eight}, bound * bound))
        return tuple(limits)

    @cached_property
    def bounded(self) -> Mapping[Key, float]:
        """The errors, each the larger one of those of the outputs and of the gradients.

        Those of a contraction in 8 bits alone have one of gradients.
        """
        found = self.gradients
        if found is None:
            return self.all
        eight = {
            key: max(error, found.unit**2 * found.square(key.op))
            for key, error in self.eight.items()
        }
        return {**self.all, **eight}

    def gradient_error(self, plan: Plan, graph: ProgramGraph) -> GradientError | None:
        """Return the predicted error of gradients; None if they are not bounded."""
        if self.gradients is None:
            return None
        made = self.made(plan, graph)
        low = sum(e for key, e in made.items() if not isinstance(key, EightBits))
        return self.gradients.error((d.op for d in plan.quantised), low)

    def larger(self, plan: Plan) -> float:
        """Return the larger predicted error of a plan, in units of the outputs'."""
        found, outputs = plan.gradient_error, plan.predicted_error or 0.0
        if found is None or self.gradients is None:
            return outputs
        return max(outputs, self.gradients.unit * found.error)

    def made(self, plan: Plan, graph: ProgramGraph) -> dict[Key, float]:
        """Return the errors of the roundings that ``plan`` makes."""
        every = self.all
        return {key: every[key] for key in self.roundings(plan, graph)}

    def roundings(self, plan: Plan, graph: ProgramGraph) -> Iterator[Key]:
        """Yield the keys of the roundings in ``plan``, counted as placement does."""
        rounded: set[str] = set()
        for op in graph.ops:
            decision = plan.by_op[op.name]
            pairs = dtypes_read(op, decision.operands)
            for name, dtype in pairs.items():
                asked = (name, op.name) in self.read and name not in rounded
                if dtype == plan.low and asked:
                    yield name, op.name
            for name, dtype in zip(op.results, decision.results, strict=True):
                if dtype == plan.low and graph.is_dtype(name, plan.full):
                    rounded.update({name} - self.weights)
                    if name in self.stored:
                        yield name
            if decision.quantises and op.name in self.eight_by_op:
                yield self.eight_by_op[op.name]

    def predicted(self, plan: Plan, graph: ProgramGraph) -> float:
        """Return the first-order relative L2 error of the outputs under ``plan``."""
        return sqrt(sum(self.made(plan, graph).values()))

    def shared(self, plan: Plan, graph: ProgramGraph) -> float:
        """Return :meth:`predicted`, with the roundings of one value correlated."""
        return sqrt(sum(self._parts(plan, graph).values()))

    def shares(self, plan: Plan, graph: ProgramGraph) -> dict[str, float]:
        """Return the share of each op in the predicted squared error.

        A rounding is attributed in equal parts to the ops that read the value low,
        because it would be kept full if they demanded that. Ops that only move values
        pass their part on. A value that no op reads low is attributed to its producer.
        The shares add up to 1; one is negative if its rounding cancels errors of
        others.
        """
        found = self.by_op(plan, graph)
        total = sum(found.values())
        if not 0.0 < total < inf:
            return {}
        return {op: error / total for op, error in found.items()}

    def by_op(self, plan: Plan, graph: ProgramGraph) -> dict[str, float]:
        """Return the part of each op in the squared error; infinite if out of range."""
        found: dict[str, float] = {}
        for key, error in self._parts(plan, graph).items():
            if isinstance(key, EightBits):
                found[key.op] = found.get(key.op, 0.0) + error
                continue
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
        return found

    def _parts(self, plan: Plan, graph: ProgramGraph) -> dict[Key, float]:
        """Return the part of each rounding of ``plan`` in the squared error.

        For a read value it is its change times the sum of the changes of all its
        readers.
        """
        made = self.made(plan, graph)
        readers: dict[str, list[Key]] = {}
        for key in made:
            if isinstance(key, tuple) and self.moves.get(key):
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
    """Return the ops that compute with ``value`` in low precision, after moves too."""
    found: set[str] = set()
    for op, _ in graph.users[value]:
        decision = plan.by_op[op.name]
        pairs = dtypes_read(op, decision.operands)
        if pairs.get(value) == plan.low:
            found |= _through(plan, graph, op.name)
    return found


def _through(plan: Plan, graph: ProgramGraph, name: str) -> set[str]:
    """Return the op itself; for an op that only moves values, its low readers."""
    if plan.by_op[name].op_class != "follow":
        return {name}
    results = graph.op_by_name[name].results
    readers = [_low_readers(plan, graph, result) for result in results]
    return set[str]().union(*readers) or {name}


def probes_of(plan: Plan, graph: ProgramGraph) -> Probes:
    """Return the roundings that ``plan`` makes, as probes to measure.

    A value is rounded where an op produces it low, unless the op only moves rounded
    values; a full value is rounded where an op reads it low.
    """
    stored: set[str] = set()
    read: set[tuple[str, str]] = set()
    rounded: set[str] = set()
    for op in graph.ops:
        decision = plan.by_op[op.name]
        pairs = dtypes_read(op, decision.operands)
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
        """Return whether a value never changes: its storage is not written."""
        return graph.storage(name) not in graph.written

    eight = {
        EightBits(op.name, found.forward, found.scaling or "none"): factors_of(op)
        for op in graph.ops
        if (found := plan.by_op[op.name]).forward
        and all(map(is_constant, factors_of(op)))
    }

    return Probes(
        low=plan.low,
        full=plan.full,
        stored=frozenset(filter(is_constant, stored)),
        read=frozenset((name, op) for name, op in read if is_constant(name)),
        saturated=frozenset(saturated),
        eight=eight,
    )


def op_of(key: Key, graph: ProgramGraph) -> str:
    """Return the op that makes a rounding: the reader, or the producer of a value."""
    if isinstance(key, EightBits):
        return key.op
    if isinstance(key, tuple):
        return key[1]
    producer = graph.producer.get(key)
    return producer.name if producer else key


def factors_of(op: Op) -> frozenset[str]:
    """Return the operands that a contraction multiplies; empty for other ops."""
    return frozenset(op.operands[index] for index in factor_indices(op))


Measure = Callable[[Plan], float | None]
"""Function from a plan to the relative L2 error of its program.

None for a program without one, because it draws random numbers.
"""

Clock = Callable[[Mapping[str, Plan]], Mapping[str, float] | None]
"""Function from plans to the median seconds of a run of each, by name.

None if the device ran out of memory.
"""


@dataclass(frozen=True)
class Measurements:
    """Measured sensitivity of a program, and the function that measures its plans.

    Attributes:
        graph: The program.
        training: Whether parameters keep their dtype, to be trained.
        captured: How the program was captured, for the plan.
        sensitivity: The error of each rounding.
        target: Bound on the relative L2 error of the outputs.
        measure: Function that measures the error of a plan's program.
        clock: Function that times the programs of plans, by name; None where nothing
            can be run.
    """

    graph: ProgramGraph
    training: bool
    captured: str
    sensitivity: Sensitivity
    target: float
    measure: Measure
    clock: Clock | None = None
