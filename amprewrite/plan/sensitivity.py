"""How much each rounding moves the outputs: what is asked for, and what was found.

Both are plain data, so that frameworks measure and passes plan without each other.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite, sqrt

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
    """

    stored: Mapping[str, float]
    read: Mapping[tuple[str, str], float]
    directions: int
    peaks: Mapping[str, float] = field(default_factory=dict[str, float])
    weights: frozenset[str] = frozenset()

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
