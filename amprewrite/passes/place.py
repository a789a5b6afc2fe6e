"""Placement ``promote``: forward promotion under demand.

The ops are visited in program order. A deny op computes in full, an allow op in low,
the others in what reaches them, unless all who read their results want full. What is
known of each value is the dtype in which it is *stored*, which is that of the op that
made it, but for two: a weight may be stored low from the start, and a storage that
some op mutates has one dtype for all its views, however it was made.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from amprewrite.dtypes import is_float
from amprewrite.ir import Op, ProgramGraph
from amprewrite.passes.classify import USER_CAST
from amprewrite.passes.demand import Demand, Demands
from amprewrite.passes.facts import lost_literals
from amprewrite.policy import OpClass, Policy
from amprewrite.policy.match import Match


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
        mutated: Storages that some op writes in place.
        biases: Additions of a bias to a contraction, by op name, with its name.
    """

    graph: ProgramGraph
    policy: Policy
    classes: Mapping[str, Match]
    demands: Demands
    weak: frozenset[str]
    weights: Mapping[str, frozenset[str]]
    mutated: frozenset[str]
    biases: Mapping[str, str] = field(default_factory=dict[str, str])
    low_weights: frozenset[str] = frozenset()


@dataclass
class Placement:
    """The result: a decision for each op, and the stored dtype of each value.

    Attributes:
        ops: Decision by op name.
        stored: Dtype by value name.
        low_weights: Weights that were taken to be stored low.
        accumulating: Contractions that hand back their accumulators.
    """

    ops: dict[str, Placed] = field(default_factory=dict[str, Placed])
    stored: dict[str, str] = field(default_factory=dict[str, str])
    low_weights: frozenset[str] = frozenset()
    accumulating: frozenset[str] = frozenset()


NOTHING_PLACED = Placement()
"""What is known before the first walk."""


def place(situation: Situation, before: Placement = NOTHING_PLACED) -> Placement:
    """Return the placement of every op.

    Args:
        situation: What is known.
        before: A placement in the same situation, but perhaps for the weights that
            are stored low; what it decided about unconcerned ops is taken over.

    Mutated storages that some mutator wants in full are found on the way, and so are
    contractions that all read in full; the walk is repeated with the first pinned and
    the second handing back their accumulators, until none is added.
    """
    pinned: set[str] = set()
    wide: set[str] = set()
    while True:
        walk = _Walk(situation, frozenset(pinned), frozenset(wide), before)
        before = walk.run()
        more = _accumulators(situation, before)
        if walk.to_pin <= pinned and more <= wide:
            return before
        pinned |= walk.to_pin
        wide |= more


def _accumulators(situation: Situation, placement: Placement) -> set[str]:
    """Return the contractions whose results everybody reads in full.

    Their accumulators are handed back as they are, instead of being rounded and cast
    up again; ops that only move the result about are seen through.
    """
    graph, full = situation.graph, situation.policy.full
    if not any(op.accumulates for op in graph.ops):
        return set()
    read, read_low = set(graph.outputs), set[str]()
    found: set[str] = set()
    for op in reversed(graph.ops):
        placed = placement.ops[op.name]
        moves = situation.classes[op.name].op_class is OpClass.FOLLOW
        in_full = (op.accumulates or moves) and all(
            name in read and name not in read_low
            for name in op.results
            if graph.is_dtype(name, full)
        )
        if in_full and op.accumulates and placed.precision == situation.policy.low:
            found.add(op.name)
        read.update(op.operands)
        if not (moves and in_full):
            pairs = zip(op.operands, placed.operands, strict=True)
            read_low.update(name for name, dtype in pairs if dtype != full)
    return found


class _Walk:
    """One walk over the ops, given the storages and contractions kept in full.

    What was decided ``before`` holds for every op that reads the same dtypes, unless
    it depends on a weight or a contraction that is treated otherwise now.
    """

    def __init__(
        self,
        situation: Situation,
        pinned: frozenset[str],
        wide: frozenset[str],
        before: Placement,
    ) -> None:
        self.at = situation
        self.graph = situation.graph
        self.full, self.low = situation.policy.full, situation.policy.low
        self.pinned = pinned
        self.to_pin: set[str] = set()
        self.out = Placement({}, {}, situation.low_weights, wide)
        self.before = before
        self.renewed = wide ^ before.accumulating
        self.moved = situation.low_weights ^ before.low_weights

    def run(self) -> Placement:
        stored = self.out.stored
        for value in self.graph.inputs():
            low = value.name in self.at.low_weights
            stored[value.name] = self.low if low else value.dtype
        for op in self.graph.ops:
            placed = self._kept(op) or self._place(op)
            self.out.ops[op.name] = placed
            for name, dtype in zip(op.results, placed.results, strict=True):
                stored[name] = self._stored(name, dtype) if self.pinned else dtype
            if op.mutates:
                self._watch_mutation(op, placed)
        return self.out

    def _kept(self, op: Op) -> Placed | None:
        """Return what was decided before, if nothing that it depends on is new."""
        known, now = self.before.stored, self.out.stored
        if not known or op.mutates or op.name in self.renewed:
            return None
        if self.moved and self._concerned(op):
            return None
        for name in op.operands:
            if known[name] != now[name]:
                return None
        return self.before.ops[op.name]

    def _concerned(self, op: Op) -> bool:
        """Whether ``op`` makes a weight, or moves one, whose storage has changed."""
        weights = self.at.weights
        return any(r in weights and weights[r] & self.moved for r in op.results)

    def _stored(self, name: str, made: str) -> str:
        """A pinned storage is kept full from its definition on."""
        storage = self.graph.storage(name)
        return self.graph.values[name].dtype if storage in self.pinned else made

    def _watch_mutation(self, op: Op, placed: Placed) -> None:
        """Pin what an op writes in place, if it computes wider than it stores."""
        for index in op.mutates:
            name = op.operands[index]
            wide = self.full in (placed.precision, placed.operands[index])
            if self.out.stored[name] == self.low and wide:
                self.to_pin.add(self.graph.storage(name))

    def _place(self, op: Op) -> Placed:
        found = self.at.classes[op.name]
        if op.canonical == USER_CAST and not op.fence:
            return self._user_cast(op)
        match found.op_class:
            case OpClass.PROMOTE | OpClass.FOLLOW:
                return self._promote(op, found)
            case OpClass.ALLOW:
                return self._allow(op, found)
            case OpClass.DENY:
                return self._run(op, self.full, found.why)
            case OpClass.KEEP:
                return self._keep(op, found)
            case OpClass.ACCUMULATE:
                return self._accumulate(op, found)

    def _traced(self, names: tuple[str, ...]) -> tuple[str, ...]:
        values = self.graph.values
        return tuple([values[name].dtype for name in names])

    def _keep(self, op: Op, found: Match) -> Placed:
        """Restore the traced dtypes, but for ops that read only metadata."""
        results = tuple(
            self.low if name in self.at.low_weights else dtype
            for name, dtype in zip(op.results, self._traced(op.results), strict=True)
        )
        precision = next(
            (d for d in results if is_float(d)), results[0] if results else ""
        )
        if op.mixing == "any" and not op.fence:
            operands = tuple(self.out.stored[name] for name in op.operands)
        else:
            operands = self._traced(op.operands)
            floats = [d for d in operands if is_float(d)]
            precision = floats[0] if floats else precision
        return Placed(precision, operands, results, found.why)

    def _user_cast(self, op: Op) -> Placed:
        """Convert to the dtype that the model names; follow a weight stored low."""
        operands = tuple(self.out.stored[name] for name in op.operands)
        results = self._traced(op.results)
        noop = op.dtype_argument == self.full and results == (self.full,)
        roots = self.at.weights.get(op.results[0])
        if noop and roots and roots <= self.at.low_weights:
            return Placed(
                self.low, operands, (self.low,), "follows a weight stored low"
            )
        return Placed(results[0], operands, results, self.at.classes[op.name].why)

    def _run(
        self, op: Op, precision: str, why: str, causes: tuple[str, ...] = ()
    ) -> Placed:
        """Compute ``op`` in ``precision``: all its full operands, all its results."""
        full = self.full
        operands = [precision if d == full else d for d in self._traced(op.operands)]
        beside = op.mixing == "lead" and precision == self.low
        others = self._full_operands(op)[1:] if beside else ()
        for index in (*others, *op.mutates):
            operands[index] = self.out.stored[op.operands[index]]
        return Placed(
            precision, tuple(operands), self._results(op, precision), why, causes
        )

    def _full_operands(self, op: Op) -> tuple[int, ...]:
        pairs = enumerate(self._traced(op.operands))
        return tuple(index for index, dtype in pairs if dtype == self.full)

    def _results(self, op: Op, precision: str) -> tuple[str, ...]:
        """Results are made in ``precision``; those of a write, in what is written."""
        if not op.mutates:
            full = self.full
            traced = self._traced(op.results)
            return tuple(precision if dtype == full else dtype for dtype in traced)
        made = list(self._traced(op.results))
        written = {
            self.graph.storage(op.operands[i]): op.operands[i] for i in op.mutates
        }
        for index, name in enumerate(op.results):
            if self.graph.storage(name) in written:
                made[index] = self.out.stored[written[self.graph.storage(name)]]
            elif made[index] == self.full:
                made[index] = precision
        return tuple(made)

    def _allow(self, op: Op, found: Match) -> Placed:
        if exact := self._exact(op):
            return exact
        stored = [self.out.stored[op.operands[index]] for index in op.mutates]
        if self.full in stored:
            why = f"writes in place to a value stored in {self.full}"
            return self._run(op, self.full, why)
        placed = self._run(op, self.low, found.why)
        if op.name not in self.out.accumulating:
            return placed
        why = f"{found.why}; all who read it want full, so it hands back its sums"
        return replace(placed, results=self._traced(op.results), why=why)

    def _exact(self, op: Op) -> Placed | None:
        """Run in full what makes the argument of a periodic or stepping op."""
        if self.at.demands.on_op(op) is not Demand.EXACT:
            return None
        causes = self.at.demands.path(self.graph, op)
        why = f"{causes[-1]} needs an exact argument, so what makes it stays full"
        return self._run(op, self.full, why, causes)

    def _accumulate(self, op: Op, found: Match) -> Placed:
        if exact := self._exact(op):
            return exact
        names = (n for n in op.operands if self.graph.is_dtype(n, self.full))
        lead = next(names, None)  # an op that makes a tensor from nothing has none
        stored = self.out.stored[lead] if lead else self.full
        return self._run(op, stored, f"stored in {stored}; {found.why}")

    def _promote(self, op: Op, found: Match) -> Placed:
        demand = self.at.demands.on_op(op)
        computes = found.op_class is OpClass.PROMOTE
        if demand is Demand.EXACT or (computes and demand is Demand.FULL):
            causes = self.at.demands.path(self.graph, op)
            return self._run(
                op, self.full, f"{causes[-1]} wants full precision", causes
            )
        strong = self._strong(op)
        wide = [name for name in strong if self.out.stored[name] == self.full]
        if wide and op.name in self.at.biases:
            why = f"the bias of {self.at.biases[op.name]}: added in full, rounded once"
            return replace(self._run(op, self.full, why), results=(self.low,))
        if wide or not strong:
            return self._run(op, self.full, self._why_wide(wide), self._makers(wide))
        if computes and (lost := list(lost_literals(op, self.low))):
            why = f"the number {lost[0]!r} does not survive {self.low}"
            return self._run(op, self.full, why)
        why = f"its operands are {self.low}"
        return self._run(op, self.low, why, self._makers(strong))

    def _strong(self, op: Op) -> list[str]:
        """Return the full-typed operands that decide; weak ones adapt to them."""
        names = [name for name in op.operands if self.graph.is_dtype(name, self.full)]
        if op.mixing == "lead":
            return names[:1]
        strong = [name for name in names if not self._is_weak(name, op)]
        return strong or names

    def _is_weak(self, name: str, op: Op) -> bool:
        if name in self.at.weak:
            return True
        if not self.at.policy.weak_parameters or name not in self.at.weights:
            return False
        rank = max((len(self.graph.values[r].shape) for r in op.results), default=0)
        return len(self.graph.values[name].shape) < rank

    def _why_wide(self, wide: list[str]) -> str:
        if not wide:
            return f"its operands are literals, traced in {self.full}"
        return f"%{wide[0]} is {self.full}, and operands promote to the widest"

    def _makers(self, names: list[str]) -> tuple[str, ...]:
        makers = (self.graph.producer.get(name) for name in names[:1])
        return tuple(op.name for op in makers if op)
