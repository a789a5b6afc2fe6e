"""Shared casts as terms of a cut: a value pays once for all uses of a cast.

Each group of uses has two auxiliary variables. Casting down costs if the value is
stored full and the variable ``all full`` is low, which is full only if every use is;
casting up costs if ``some full`` is full, as any full use makes it, and the value is
low.

One kind of cast is not of that form: a promoting kernel casts its low operands itself
if one of them is stored full, so that a full op pays for casting up only if *all* its
operands are low. Those ops are listed as mixes, for
:mod:`amprewrite.passes.mincut.operand_rules`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from amprewrite.passes.mincut.max_flow import FULL, LOW, Terms
from amprewrite.passes.placement.cast_rules import CastKey


@dataclass(slots=True)
class Group:
    """The uses that would share one cast.

    Attributes:
        stored: Variable of the precision in which the value is stored.
        cost: Cost of the cast.
        up: Whether it widens.
        uses: Variables of the precisions in which the uses read, with repetition.
        mixes: Numbers of the mixes that may want the cast.
        wanted: Variable that is full if some use needs a cast up; for mixes.
    """

    stored: int
    cost: int
    up: bool
    uses: list[int] = field(default_factory=list[int])
    mixes: tuple[int, ...] = ()
    wanted: int = LOW


@dataclass(frozen=True, slots=True)
class Mix:
    """An op with a promoting kernel and operands of different storage.

    Attributes:
        op: Variable of the op.
        stored: Variables of the precisions in which its operands with dimensions are
            stored.
        groups: The casts up that it pays for if it is full and all operands are low.
    """

    op: int
    stored: tuple[int, ...]
    groups: tuple[Group, ...]


class Groups:
    """All casts that a placement may need, and the promoting ops."""

    def __init__(self) -> None:
        """Start with none."""
        self.by_key = dict[CastKey, Group]()
        self.mixes: list[Mix] = []

    def mix(self, op: int, pairs: Iterable[tuple[int, Group | None]]) -> None:
        """Add a promoting op: the variables of its operands, and their casts up.

        Args:
            op: Variable of the op.
            pairs: For each operand with dimensions the variable of the precision in
                which it is stored, and the group of its cast; None for a cast without
                cost.
        """
        found = list(pairs)
        if not found:
            return
        stored = tuple(dict.fromkeys(variable for variable, _ in found))
        if FULL in stored:
            return
        unique = {id(group): group for _, group in found if group is not None}
        groups = tuple(unique.values())
        if len(stored) == 1:
            for group in groups:
                group.uses.append(op)
        elif groups:
            for group in groups:
                group.mixes += (len(self.mixes),)
            self.mixes.append(Mix(op, stored, groups))

    def add_to(self, terms: Terms, first_free: int) -> int:
        """Add the terms of all groups; return the next free variable.

        The costs of groups that a mix may want are left out: they depend on the mix.
        """
        free = first_free
        for group in self.by_key.values():
            uses = group.uses
            if len(uses) > 1:  # most have one, and sets of one are dear
                uses = sorted({*uses} - {group.stored})
            if group.mixes:
                group.wanted, free = free, free + 1
                for use in uses:
                    terms.imply(use, group.wanted)
            elif len(uses) == 1:
                _pay(terms, group, uses[0])
            elif uses:
                shared, free = free, free + 1
                _pay(terms, group, shared)
                for use in uses:
                    first, then = (use, shared) if group.up else (shared, use)
                    terms.imply(first, then)
        return free


def _pay(terms: Terms, group: Group, reads: int) -> None:
    full, low = (reads, group.stored) if group.up else (group.stored, reads)
    terms.pay(full, low, group.cost)
