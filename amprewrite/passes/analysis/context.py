"""Data shared by placements: the facts before placement, and its result."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from amprewrite.ir import Op, ProgramGraph
from amprewrite.passes.analysis.classify import lowers_promoted
from amprewrite.passes.analysis.demand import Demand, Demands
from amprewrite.passes.analysis.values import NOTHING_RETURNED, Returned
from amprewrite.policy import OpClass, Policy
from amprewrite.policy.match import Match
from amprewrite.runtime.fast_init import fast_init

Assignment = Literal["low", "full", "accumulator"]
"""Precision of an op; ``accumulator``: low, with its full accumulator as result."""


@fast_init
@dataclass(frozen=True, slots=True)
class Placed:
    """Placement of one op, with its reason.

    Attributes:
        precision: Dtype that it computes in.
        operands: Dtype in which each operand is read.
        results: Dtype in which each result is made.
        why: Reason beyond the class.
        causes: Ops that forced the precision, nearest first.
    """

    precision: str
    operands: tuple[str, ...]
    results: tuple[str, ...]
    why: str = ""
    causes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Guard:
    """Reason why an op runs full for the sake of a guard.

    Attributes:
        why: The number, and what it becomes in low.
        causes: The ops that read it, nearest first; the last one needs it unrounded.
        is_product: Whether the op is a contraction with a guarded result: it is low and
            hands over its accumulator.
    """

    why: str
    causes: tuple[str, ...]
    is_product: bool = False


@dataclass(frozen=True)
class Situation:
    """Facts about a program before placement.

    Attributes:
        graph: The program.
        policy: The policy.
        classes: Class of every op.
        demands: Demand on every value.
        weak: 0-d values that adapt to other operands.
        weights: For values reached from weights by data movement, those weights.
        low_weights: Weights that are stored low.
        entries: Ops by which values enter loops, if casts may be hoisted before them:
            none if the program may be differentiated.
        hoisted: Entries with a hoisted cast, in placement ``promote``.
        mutated: Storages that some op writes in place.
        followed: For casts to the dtype of other values, those values.
        biases: Additions of a bias to a contraction, by op name, with its name.
        returned: Values by which a caller may differentiate.
        guards: Ops that a guard needs in full, by name; products among them are low.
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
    guards: Mapping[str, Guard] = field(default_factory=dict[str, Guard])
    low_weights: frozenset[str] = frozenset()
    entries: frozenset[str] = frozenset()
    hoisted: frozenset[str] = frozenset()
    returned: Returned = NOTHING_RETURNED

    def is_full_statistic(self, op: Op) -> bool:
        """Return whether ``op`` may reduce in low, but is demanded in full."""
        accumulates = self.classes[op.name].op_class is OpClass.ACCUMULATE
        full = self.demands.on_op(op) is not Demand.ANY
        return accumulates and full and op.traits.statistic

    def guard_of(self, op: Op) -> Guard | None:
        """Return the guard for which ``op`` runs full; None if there is none."""
        guard = self.guards.get(op.name)
        return None if guard is None or guard.is_product else guard

    def accumulator_reason(self, op: Op) -> str:
        """Return why a contraction hands over its accumulator."""
        guard = self.guards.get(op.name)
        return guard.why if guard else "all readers want full"

    def reads(self, op: Op) -> tuple[str, ...]:
        """Return the dtypes in which promoted operands are read under a solver.

        Empty if none was promoted. A solver does not assign such ops: allow ops are
        low, unless an exact argument is demanded; others read their operands as
        promoted.
        """
        if not op.reads:
            return ()
        allowed = self.classes[op.name].op_class is OpClass.ALLOW
        exact = self.demands.is_exact(op)
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
    """Result of a placement: a decision for each op, the stored dtype of each value.

    Attributes:
        ops: Decision by op name.
        stored: Dtype by value name.
        low_weights: Weights assumed to be stored low.
        pinned: Storages kept full.
        accumulating: Contractions that return their accumulators.
        assignments: The solver's assignments of ops; None without a solver.
    """

    ops: dict[str, Placed] = field(default_factory=dict[str, Placed])
    stored: dict[str, str] = field(default_factory=dict[str, str])
    low_weights: frozenset[str] = frozenset()
    pinned: frozenset[str] = frozenset()
    accumulating: frozenset[str] = frozenset()
    assignments: Mapping[str, Assignment] | None = None

    def rounded_to(self, at: Situation, name: str) -> str:
        """Return the dtype of the numbers in a value: a returned one is stored full."""
        if name not in at.returned.values:
            return self.stored[name]
        maker = at.graph.producer[name]
        return self.ops[maker.name].results[maker.results.index(name)]


NOTHING_PLACED = Placement()
"""Placement before the first walk."""
