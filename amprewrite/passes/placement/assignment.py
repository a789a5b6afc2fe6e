"""Turn an assignment of ops to precisions into a placement.

Ops without an assignment are placed by their class: deny ops full, keep ops as traced,
moved weights as stored; a weight is low if no op reads it in full.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from amprewrite.ir import Op
from amprewrite.passes.analysis.classify import USER_CAST
from amprewrite.passes.analysis.context import Assignment, Placed, Placement, Situation
from amprewrite.passes.placement.constraints import Freedom
from amprewrite.passes.placement.walk import Walk
from amprewrite.passes.placement.weight_storage import place_with_storage
from amprewrite.policy import OpClass
from amprewrite.policy.match import Match


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
