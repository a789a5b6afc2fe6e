"""Readers of a guard: the ops that need its number unrounded, and the way to them."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from amprewrite.dtypes import is_float
from amprewrite.ir import Op, ProgramGraph
from amprewrite.passes.analysis.classify import MOVES, USER_CAST
from amprewrite.policy.match import Match
from amprewrite.policy.model import ACCUMULATE, DENY, FOLLOW, KEEP, PROMOTE

SATURATING = frozenset(
    ("softmax", "exponential", "log_exp", "activation", "comparison", "ordering")
)
"""Groups that give the same for the largest finite number and for a larger one."""

Kind = Literal["edge", "range"]
KINDS: tuple[Kind, ...] = ("edge", "range")
"""Kinds of guards: next to 0, 1 or -1, or beyond the largest finite number."""


class Readers:
    """The values that an op reads which needs them unrounded, and the way to it."""

    def __init__(
        self,
        graph: ProgramGraph,
        classes: Mapping[str, Match],
        kind: Literal["edge", "range", "mask"],
        outputs: Iterable[str] = (),
    ) -> None:
        self.graph, self.classes, self.kind = graph, classes, kind
        self.next: dict[str, str] = {}  # by value, or by storage
        self.after: dict[str, str] = {}  # by op
        for name in outputs:
            self.next[self.key(name)] = "output"
        for op in reversed(graph.ops):
            follow = (self.next.get(self.key(name), "") for name in op.results)
            self.after[op.name] = next(filter(None, follow), "")
            if self.concerns(op):
                self.next.update((key, op.name) for key in self.keys(op))

    def key(self, name: str) -> str:
        """Return the storage of a value that is written in place; else its name."""
        storage = self.graph.storage(name)
        return storage if storage in self.graph.written else name

    def keys(self, op: Op) -> Iterator[str]:
        """Yield the keys of the floats that ``op`` reads."""
        values = self.graph.values
        return (self.key(name) for name in op.operands if values[name].is_float)

    def reaches(self, op: Op) -> bool:
        """Return whether a result of ``op`` comes to a reader that needs it."""
        return bool(self.after[op.name])

    def concerns(self, op: Op, *, is_source: bool = False) -> bool:
        """Return whether ``op`` needs its operands, or passes them to a reader.

        Args:
            op: The op.
            is_source: Whether the guard is a number of the op itself.
        """
        return self.needs(op) or ((is_source or self._passes(op)) and self.reaches(op))

    def needs(self, op: Op) -> bool:
        """Return whether ``op`` itself needs its operands unrounded."""
        op_class, group = self.classes[op.name].op_class, op.traits.group
        if op.canonical == USER_CAST and op_class is KEEP:
            return self.kind == "edge" and not is_float(op.dtype_argument)
        if self.kind == "mask":
            return op_class is DENY and group in SATURATING
        if self.kind == "range" and group in SATURATING:
            return False
        if op_class is KEEP:
            return op.operand_rule != "any" and op.canonical not in MOVES
        singular = op_class is PROMOTE and op.traits.singular
        return op_class is DENY or singular

    def _passes(self, op: Op) -> bool:
        """Return whether the results of ``op`` are as precise as its operands."""
        if op.canonical == USER_CAST:
            return is_float(op.dtype_argument)
        op_class, group = self.classes[op.name].op_class, op.traits.group
        if self.kind == "range" and group in SATURATING:
            return False
        norm = group == "normalisation"
        return op_class in (PROMOTE, FOLLOW) or (op_class is ACCUMULATE and not norm)

    def path(self, op: Op) -> tuple[str, ...]:
        """Return the ops from ``op`` to the one that needs it, nearest first."""
        names: list[str] = []
        name = self.after[op.name]
        while name:
            names.append(name)
            reader = self.graph.op_by_name.get(name)
            ends = reader is None or self.needs(reader)
            name = "" if ends else self.after[name]
        return tuple(names)
