"""From the sides of ops to a placement: a walk in which free ops do as they are told.

What the sides leave open is placed as everywhere: deny ops full, kept ops as traced,
moved weights as they are stored, and a weight low if nobody reads it in full.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from amprewrite.ir import Op
from amprewrite.passes.analysis.classify import USER_CAST
from amprewrite.passes.analysis.context import Placed, Placement, Side, Situation
from amprewrite.passes.placement.constraints import Freedom
from amprewrite.passes.placement.walk import Walk
from amprewrite.passes.placement.weight_storage import place_with_storage
from amprewrite.policy import OpClass
from amprewrite.policy.match import Match


@dataclass(frozen=True)
class Chosen:
    """Sides, and the words in which a decision gives its reason.

    Attributes:
        freedom: What there was to decide.
        sides: The side of every sided op.
        reasons: Reason for each side, after the one of the op's class.
    """

    freedom: Freedom
    sides: Mapping[str, Side]
    reasons: Mapping[Side, str]


def place_sides(
    situation: Situation, chosen: Chosen, *, training: bool
) -> tuple[Placement, frozenset[str]]:
    """Return the placement that ``chosen`` asks for, and the weights stored low.

    Args:
        situation: What is known before placement.
        chosen: A side for every sided op.
        training: Whether parameters keep their dtype.
    """
    pinned = chosen.freedom.wide_storages(chosen.sides)

    def place(attempt: Situation, _before: Placement) -> Placement:
        return SidedWalk(attempt, chosen, pinned).run()

    return place_with_storage(situation, training=training, placer=place)


class SidedWalk(Walk):
    """One walk in which allow, accumulate, promote and follow ops have given sides."""

    def __init__(
        self, situation: Situation, chosen: Chosen, pinned: frozenset[str]
    ) -> None:
        """Take the sides.

        Args:
            situation: What is known.
            chosen: The sides.
            pinned: Storages that are kept full.
        """
        super().__init__(situation, pinned, frozenset(), Placement())
        self.chosen = chosen
        kept: dict[str, Side] = dict.fromkeys(chosen.freedom.pinned, "full")
        self.out.sides = {**chosen.sides, **kept}

    def _place(self, op: Op) -> Placed:
        freedom = self.chosen.freedom
        if why := freedom.pinned.get(op.name):
            causes = self.at.demands.path(self.graph, op) if "exact" in why else ()
            return self._run(op, self.full, why, causes)
        side = self.chosen.sides.get(op.name)
        if side is None:
            return super()._place(op)
        found = self.at.classes[op.name]
        words = [text for text in (found.why, self.chosen.reasons[side]) if text]
        placed = self._run(op, self._dtype(side), "; ".join(words))
        if op.canonical == USER_CAST:  # the cast that it is converts what is stored
            stored = tuple(self.out.stored[name] for name in op.operands)
            return replace(placed, operands=stored)
        if side != "sums":
            return placed
        return replace(placed, results=self._traced(op.results))

    def _following_cast(self, op: Op, operands: tuple[str, ...]) -> Placed:
        """A cast of a weight that is not stored low gives full."""
        why = self.at.classes[op.name].why
        return Placed(self.full, operands, (self.full,), why)

    def _by_class(self, op: Op, found: Match) -> Placed:
        """An op with promoted operands has no side; see :meth:`Situation.reads`."""
        if not op.reads or found.op_class is OpClass.ALLOW:
            return super()._by_class(op, found)
        return self._run(op, self.full, found.why)

    def _widens_rows(self, op: Op) -> bool:
        """A side is the dtype of the result, too."""
        del op
        return False

    def _dtype(self, side: Side) -> str:
        return self.full if side == "full" else self.low
