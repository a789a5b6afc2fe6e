"""Constraints of a solver: assignable ops, ops pinned to full, and ties.

A solver assigns every op that the policy lets run low; all others (deny, keep, user
casts) follow their class. Pinned to full are ops that make an exact argument, use a
number that low cannot represent, or feed a comparison without depending on data, and
lookup tables that the policy stores full.

Demand for full precision (see ``demand``) binds three kinds of promote ops, in which a
rounding grows: a square, an op on statistics alone, and a value that its own mean is
subtracted from. The difference itself is low only if the value is made low, so that
nothing is rounded before the mean is subtracted; the same holds for moves to a
comparison. Other ops may be low: a residual stream before a norm gains by it and loses
little, but a fast-variance layer norm after a bias of 100 had relative error 0.85
without this rule and 5e-3 with it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from amprewrite.ir import Op, ProgramGraph
from amprewrite.ops import Group
from amprewrite.passes.analysis.classify import USER_CAST
from amprewrite.passes.analysis.context import Assignment, Placed, Placement, Situation
from amprewrite.passes.analysis.demand import Demand, find_centring
from amprewrite.passes.analysis.values import RETURNED_VIEW, exact_ops, lost_literals
from amprewrite.passes.cost.cost import FREE
from amprewrite.passes.placement.promote import (
    Walk,
    moves_weights,
    only_looked_up,
    place_with_storage,
)
from amprewrite.plan.comparing import compared_moves
from amprewrite.policy import OpClass
from amprewrite.policy.match import Match


@dataclass(frozen=True)
class Freedom:
    """The choices of a solver, and their constraints.

    Attributes:
        assignable: Ops to assign, in program order.
        pinned: Ops that run full though their class is free, with the reason.
        causes: For those of them that make an exact argument, the ops that forced it.
        moved: Ops without an assignment, which have the precision of their operands.
        members: For each storage that is written in place, the ops that view or write
            it; all of them and the storage have the same assignment.
        makers: For each such storage, the ops that make it; if one of them is full, so
            is the storage.
        full_storages: Storages that are full under all assignments.
        accumulators: Assignable ops that can return a full accumulator.
        requires_low: Ops that may be low only if all of the named ops are.
    """

    assignable: tuple[str, ...]
    pinned: Mapping[str, str]
    moved: frozenset[str]
    members: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict[str, tuple[str, ...]]
    )
    makers: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict[str, tuple[str, ...]]
    )
    full_storages: frozenset[str] = frozenset()
    accumulators: frozenset[str] = frozenset()
    requires_low: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict[str, tuple[str, ...]]
    )
    causes: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict[str, tuple[str, ...]]
    )

    def options(self, name: str) -> tuple[Assignment, ...]:
        """Return the assignments that op ``name`` may have."""
        return (
            ("low", "full", "accumulator")
            if name in self.accumulators
            else ("low", "full")
        )

    def wide_storages(self, assignments: Mapping[str, Assignment]) -> frozenset[str]:
        """Return the storages written in place that are full under ``assignments``."""
        ops = [
            (s, n)
            for table in (self.members, self.makers)
            for s in table
            for n in table[s]
        ]
        wide = {
            storage for storage, name in ops if assignments.get(name, "full") != "low"
        }
        return self.full_storages | wide

    def allows(self, assignments: Mapping[str, Assignment]) -> bool:
        """Return whether ``assignments`` satisfy the ties."""
        for name, makers in self.requires_low.items():
            full = any(assignments.get(maker, "full") != "low" for maker in makers)
            if full and assignments.get(name) == "low":
                return False
        wide = self.wide_storages(assignments)
        return all(
            (assignments.get(name, "full") != "low") == (storage in wide)
            for storage, names in self.members.items()
            for name in names
        )


def find_freedom(situation: Situation, *, keep_parameter_dtype: bool) -> Freedom:
    """Return the choices of a solver in ``situation``.

    Args:
        situation: The facts before placement.
        keep_parameter_dtype: Whether parameters keep their dtype, so that only tensors
            filled with a number may be stored low.
    """
    return _Finder(situation, keep_parameter_dtype=keep_parameter_dtype).find()


class _Finder:
    def __init__(self, situation: Situation, *, keep_parameter_dtype: bool) -> None:
        self.at = situation
        self.storable = storable_weights(
            situation, keep_parameter_dtype=keep_parameter_dtype
        )
        self.graph: ProgramGraph = situation.graph
        self.full, self.low = situation.policy.full, situation.policy.low
        self.looked_up = self._tables_kept_full()
        demand = situation.policy.demand
        self.centring = (
            find_centring(self.graph, situation.classes) if demand else frozenset[str]()
        )
        self.centred = self._centred()
        classes = {name: m.op_class for name, m in situation.classes.items()}
        self.compared = compared_moves(self.graph, classes)
        self.exact = exact_ops(self.graph, situation.classes)
        self.requires_low: dict[str, tuple[str, ...]] = {}
        self.statistics: set[str] = set()  # of deny ops, or of these alone
        self.assignable: list[str] = []
        self.pinned: dict[str, str] = {}
        self.moved: set[str] = set()
        self.members: dict[str, list[str]] = {}
        self.makers: dict[str, list[str]] = {}
        self.full_storages = set(situation.returned.storages)

    def find(self) -> Freedom:
        for op in self.graph.ops:
            op_class = self.at.classes[op.name].op_class
            if op_class in FREE and not op.reads and not self._casts_weight(op):
                self._sort(op)
            if op_class is OpClass.FOLLOW and op.name in self.compared:
                self._require_low(op, self._full_operands(op))
            elif op.name in self.centring:
                names = self._full_operands(op)
                self._require_low(op, [n for n in names if n not in self.statistics])
            made = op_class is OpClass.FOLLOW or op.name in self.pinned
            of_them = self.statistics.issuperset(self._full_operands(op))
            whole = op_class is OpClass.DENY or self.at.is_full_statistic(op)
            if whole or (made and of_them):
                self.statistics.update(op.results)
        self._tie()
        return Freedom(
            tuple(name for name in self.assignable if name not in self.pinned),
            self.pinned,
            frozenset(self.moved),
            {storage: tuple(names) for storage, names in self.members.items()},
            {storage: tuple(names) for storage, names in self.makers.items()},
            frozenset(self.full_storages),
            frozenset(filter(self._may_return_accumulator, self.assignable)),
            self.requires_low,
            self._causes(),
        )

    def _causes(self) -> dict[str, tuple[str, ...]]:
        """Return the ops that forced each pinned op that makes an exact argument."""
        demands = self.at.demands
        pinned = (self.graph.op_by_name[name] for name in self.pinned)
        exact = filter(demands.is_exact, pinned)
        return {op.name: demands.path(self.graph, op) for op in exact}

    def _casts_weight(self, op: Op) -> bool:
        """Return whether the model casts a weight: the cast is low if the weight is."""
        return op.canonical == USER_CAST and moves_weights(self.at, op)

    def _sort(self, op: Op) -> None:
        exact = "a position or a draw is exact" if op.name in self.exact else ""
        guard = self.at.guard_of(op)
        why = guard.why if guard else exact or self._pin(op)
        if why or op.name in self.at.returned.views:
            self.pinned[op.name] = why or RETURNED_VIEW
        elif self._is_moved(op):
            self.moved.add(op.name)
        else:
            self.assignable.append(op.name)

    def _pin(self, op: Op) -> str:
        """Return why ``op`` must run in full; empty if it may run low."""
        op_class = self.at.classes[op.name].op_class
        if self.at.demands.is_exact(op):
            return self.at.demands.exact_reason(self.graph, op)
        if why := self._grows(op):
            causes = self.at.demands.path(self.graph, op)
            return f"{why}, and {causes[-1]} wants it full"
        if op_class is OpClass.PROMOTE and (lost := [*lost_literals(op, self.low)]):
            return f"the number {lost[0]!r} does not survive {self.low}"
        if op_class is not OpClass.ALLOW and not self._full_operands(op):
            return f"reads no {self.full}, which it was traced to make"
        if op.traits.group == Group.LOOKUP and op.operands[0] in self.looked_up:
            return "the policy stores a table that is only looked up in full"
        return ""

    def _grows(self, op: Op) -> str:
        """Return the reason why a rounding of ``op``'s result grows; empty if none."""
        if self.at.is_full_statistic(op):
            return "it is a statistic"
        promotes = self.at.classes[op.name].op_class is OpClass.PROMOTE
        if not promotes or self.at.demands.on_op(op) is not Demand.FULL:
            return ""
        names = self._full_operands(op)
        twice = op.canonical == "mul" and len(op.operands) > len(set(op.operands))
        if op.traits.group == Group.SQUARE or twice:
            return "a square doubles the relative error"
        if self.statistics.issuperset(names):
            return "it is made of statistics"
        if self.centred.intersection(op.results):
            return "its mean is subtracted from it"
        return ""

    def _require_low(self, op: Op, names: list[str]) -> None:
        """Allow ``op`` to be low only if the values ``names`` are made low."""
        makers = [self.graph.producer.get(name) for name in names]
        self.requires_low[op.name] = tuple(op.name if op else "" for op in makers)

    def _full_operands(self, op: Op) -> list[str]:
        return [name for name in op.operands if self.graph.is_dtype(name, self.full)]

    def _centred(self) -> frozenset[str]:
        """Return the operands of differences from a mean, through moves."""
        found: set[str] = set()
        for op in reversed(self.graph.ops):
            moves = self.at.classes[op.name].op_class is OpClass.FOLLOW
            if op.name in self.centring or (moves and found.intersection(op.results)):
                found.update(op.operands)
        return frozenset(found)

    def _is_moved(self, op: Op) -> bool:
        names = (*op.operands, *op.results)
        if any(self.graph.storage(name) in self.graph.written for name in names):
            return False
        if op.name in self.at.entries:
            return False
        if op.canonical in ("enter", "leave") and len(op.operands) == 1:
            return True
        return moves_weights(self.at, op) and all(
            self.at.weights[name] <= self.storable for name in op.results
        )

    def _tables_kept_full(self) -> frozenset[str]:
        """Return the values that are only lookup tables, if those stay full."""
        if self.at.policy.lookups == "low":
            return frozenset()
        tables = set(only_looked_up(self.at))
        for op in self.graph.ops:
            for index, name in enumerate(op.operands):
                roots = self.at.weights.get(name, frozenset[str]())
                lookup = op.traits.group == Group.LOOKUP and index == 0
                if roots & tables and not lookup and not moves_weights(self.at, op):
                    tables -= roots
        weights = self.at.weights.items()
        return frozenset(name for name, roots in weights if roots <= tables)

    def _may_return_accumulator(self, name: str) -> bool:
        op = self.graph.op_by_name[name]
        allowed = self.at.classes[name].op_class is OpClass.ALLOW
        results = map(self.graph.storage, op.results)
        plain = not op.mutates and not self.graph.written.intersection(results)
        return name not in self.pinned and op.accumulates and allowed and plain

    def _tie(self) -> None:
        """Collect the ops on written storages, and pin those that must be full."""
        if not self.graph.written:
            return
        for value in self.graph.inputs():
            self._widen(value.name)
        for op in self.graph.ops:
            self._tie_op(op)
        free = {*self.assignable}
        changed = True
        while changed:
            changed = False
            for storage, names in (*self.members.items(), *self.makers.items()):
                forced = any(n not in free or n in self.pinned for n in names)
                if forced and storage not in self.full_storages:
                    self.full_storages.add(storage)
                    changed = True
            for storage in self.full_storages & self.members.keys():
                for name in self.members[storage]:
                    if name in free and name not in self.pinned:
                        why = "it touches a storage that is written in place in full"
                        self.pinned[name] = why
                        changed = True

    def _tie_op(self, op: Op) -> None:
        read = {self.graph.storage(name) for name in op.operands}
        written = [op.operands[i] for i in op.mutates]
        for name in dict.fromkeys((*op.results, *written)):
            storage = self.graph.storage(name)
            if storage in self.graph.written and self.graph.is_dtype(name, self.full):
                inside = storage in read
                table = self.members if inside else self.makers
                names = table.setdefault(storage, [])
                if op.name not in names:
                    names.append(op.name)

    def _widen(self, name: str) -> None:
        storage = self.graph.storage(name)
        if storage in self.graph.written and self.graph.values[name].is_float:
            self.full_storages.add(storage)


def storable_weights(
    situation: Situation, *, keep_parameter_dtype: bool
) -> frozenset[str]:
    """Return the weights that may be stored low: when training, only fillers."""
    values = situation.graph.values
    roots = frozenset[str]().union(*situation.weights.values())
    if keep_parameter_dtype:
        roots = frozenset(root for root in roots if values[root].kind == "result")
    return roots - frozenset[str]().union(
        *(situation.weights.get(name, ()) for name in situation.graph.outputs)
    )


# Turn an assignment of ops to precisions into a placement.
#
# Ops without an assignment are placed by their class: deny ops full, keep ops as
# traced, moved weights as stored; a weight is low if no op reads it in full.


@dataclass(frozen=True)
class Chosen:
    """Assignments, with the texts for the reasons of decisions.

    Attributes:
        freedom: The ops that can be assigned.
        assignments: The assignment of every assignable op.
        reasons: Reason for each assignment, after the one of the op's class.
    """

    freedom: Freedom
    assignments: Mapping[str, Assignment]
    reasons: Mapping[Assignment, str]


def place_assignment(
    situation: Situation, chosen: Chosen, *, keep_parameter_dtype: bool
) -> tuple[Placement, frozenset[str]]:
    """Return the placement of ``chosen``, and the weights stored low.

    Args:
        situation: The facts before placement.
        chosen: An assignment for every assignable op.
        keep_parameter_dtype: Whether parameters keep their dtype.
    """
    pinned = chosen.freedom.wide_storages(chosen.assignments)

    def place(attempt: Situation, _before: Placement) -> Placement:
        return SidedWalk(attempt, chosen, pinned).run()

    return place_with_storage(
        situation, keep_parameter_dtype=keep_parameter_dtype, placer=place
    )


class SidedWalk(Walk):
    """A walk in which allow, accumulate, promote and follow ops are assigned."""

    def __init__(
        self, situation: Situation, chosen: Chosen, pinned: frozenset[str]
    ) -> None:
        """Store the assignments.

        Args:
            situation: The facts about the program.
            chosen: The assignments.
            pinned: Storages kept full.
        """
        super().__init__(situation, pinned, frozenset(), Placement())
        self.chosen = chosen
        kept: dict[str, Assignment] = dict.fromkeys(chosen.freedom.pinned, "full")
        self.out.assignments = {**chosen.assignments, **kept}

    def _place(self, op: Op) -> Placed:
        freedom = self.chosen.freedom
        if guard := self.at.guard_of(op):
            return self._run(op, self.full, guard.why, guard.causes)
        if why := freedom.pinned.get(op.name):
            return self._run(op, self.full, why, freedom.causes.get(op.name, ()))
        assignment = self.chosen.assignments.get(op.name)
        if assignment is None:
            return super()._place(op)
        found = self.at.classes[op.name]
        words = [text for text in (found.why, self.chosen.reasons[assignment]) if text]
        placed = self._run(op, self._dtype(assignment), "; ".join(words))
        if op.canonical == USER_CAST:  # it converts its operand as stored
            stored = tuple(self.out.stored[name] for name in op.operands)
            return replace(placed, operands=stored)
        if assignment != "accumulator":
            return placed
        return replace(placed, results=self._traced(op.results))

    def _following_cast(self, op: Op, operands: tuple[str, ...]) -> Placed:
        """Return full for a cast of a weight that is not stored low."""
        why = self.at.classes[op.name].why
        return Placed(self.full, operands, (self.full,), why)

    def _by_class(self, op: Op, found: Match) -> Placed:
        """Place ops with promoted operands without assignment; see Situation.reads."""
        if not op.reads or found.op_class is OpClass.ALLOW:
            return super()._by_class(op, found)
        return self._run(op, self.full, found.why)

    def _widens_rows(self, op: Op) -> bool:
        """Return False: an assignment is the dtype of the result, too."""
        del op
        return False

    def _dtype(self, assignment: Assignment) -> str:
        return self.full if assignment == "full" else self.low
