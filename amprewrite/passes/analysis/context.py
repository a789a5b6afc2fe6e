"""What is known before ops are placed, and where they are placed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from amprewrite.ir import Op, ProgramGraph
from amprewrite.passes.analysis.classify import lowers_promoted
from amprewrite.passes.analysis.demand import Demand, Demands
from amprewrite.policy import OpClass, Policy
from amprewrite.policy.match import Match

Assignment = Literal["low", "full", "accumulator"]
"""Where an op computes; ``accumulator``: low, with its full accumulator as result."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Where one op computes, and why.

    Attributes:
        precision: Dtype that it computes in.
        operands: Dtype in which each operand is read.
        results: Dtype in which each result is made.
        why: What decided, beyond the class.
        causes: Ops that forced it, nearest first.
    """

    precision: str
    operands: tuple[str, ...]
    results: tuple[str, ...]
    why: str = ""
    causes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Situation:
    """What is known before placement.

    Attributes:
        graph: The program.
        policy: The policy.
        classes: Class of every op.
        demands: Demand on every value.
        weak: 0-d values that adapt to other operands.
        weights: For values reached from weights by data movement, those weights.
        low_weights: Weights that are stored low.
        entries: Ops by which values enter loops, before which they may be cast: none
            if the program may be differentiated.
        hoisted: Those of them before which they are, in placement ``promote``.
        mutated: Storages that some op writes in place.
        followed: For casts that follow other values' dtypes, those values.
        biases: Additions of a bias to a contraction, by op name, with its name.
    """

    graph: ProgramGraph
    policy: Policy
    classes: Mapping[str, Match]
    demands: Demands
    weak: frozenset[str]
    weights: Mapping[str, frozenset[str]]
    mutated: frozenset[str]
    followed: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict[str, tuple[str, ...]]
    )
    biases: Mapping[str, str] = field(default_factory=dict[str, str])
    low_weights: frozenset[str] = frozenset()
    entries: frozenset[str] = frozenset()
    hoisted: frozenset[str] = frozenset()

    def is_full_statistic(self, op: Op) -> bool:
        """Return whether ``op`` is a reduction that may be low, but is wanted full."""
        accumulates = self.classes[op.name].op_class is OpClass.ACCUMULATE
        full = self.demands.on_op(op) is not Demand.ANY
        return accumulates and full and op.traits.statistic

    def reads(self, op: Op) -> tuple[str, ...]:
        """Return the dtypes in which promoted operands are read at a solver's choice.

        Empty if none was promoted. A solver gives such ops no assignment: allow ops are
        low, unless what reads them needs an exact argument, others are as promoted.
        """
        allowed = self.classes[op.name].op_class is OpClass.ALLOW
        exact = self.demands.on_op(op) is Demand.EXACT
        if exact or not allowed or not lowers_promoted(op, self.policy):
            return op.reads
        full, low = self.policy.full, self.policy.low
        return tuple(low if dtype == full else dtype for dtype in op.reads)

    def takes_dtype(self, op: Op) -> bool:
        """Return whether ``op`` casts its first operand to full by ``dtype=``."""
        denied = self.classes[op.name].op_class is OpClass.DENY
        return op.has_dtype_argument and (denied or self.is_full_statistic(op))


@dataclass
class Placement:
    """The result: a decision for each op, and the stored dtype of each value.

    Attributes:
        ops: Decision by op name.
        stored: Dtype by value name.
        low_weights: Weights that were taken to be stored low.
        pinned: Storages that were kept full.
        accumulating: Contractions that hand back their accumulators.
        assignments: Assignments of the ops for which a solver chose them; None if none
            chose.
    """

    ops: dict[str, Placed] = field(default_factory=dict[str, Placed])
    stored: dict[str, str] = field(default_factory=dict[str, str])
    low_weights: frozenset[str] = frozenset()
    pinned: frozenset[str] = frozenset()
    accumulating: frozenset[str] = frozenset()
    assignments: Mapping[str, Assignment] | None = None


NOTHING_PLACED = Placement()
"""What is known before the first walk."""
