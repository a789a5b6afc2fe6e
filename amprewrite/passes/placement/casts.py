"""The casts of a placement: where a value is stored and read in different dtypes.

There is one cast per value, dtype and region, shared by all readers; a value that is
written in place after its cast is cast again. A cast done by the reading kernel itself
is listed as folded, and so is that of a weight stored low from the start.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from amprewrite.dtypes import itemsize
from amprewrite.ir import Op
from amprewrite.passes.analysis.context import Placement, Situation
from amprewrite.passes.cost.moved_bytes import cast_bytes
from amprewrite.passes.placement.cast_rules import CastKey, CastRules
from amprewrite.plan import OUTPUT, Cast
from amprewrite.plan.fields import Folding
from amprewrite.plan.uses import output_sources
from amprewrite.policy import Reason


@dataclass
class _Group:
    """The uses that share one cast, and its first reader."""

    first: Op | None
    from_dtype: str
    why: str
    uses: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])


def build_casts(
    situation: Situation, placement: Placement, outputs: Iterable[str], *, fold: bool
) -> tuple[Cast, ...]:
    """Return every cast of a placement, in order of first use.

    Args:
        situation: The facts before placement.
        placement: The placement.
        outputs: Dtype in which each output is returned.
        fold: Whether casts of weights are done once, at conversion.
    """
    return _Builder(situation, placement, fold=fold).build(tuple(outputs))


class _Builder:
    def __init__(
        self, situation: Situation, placement: Placement, *, fold: bool
    ) -> None:
        self.at, self.graph = situation, situation.graph
        self.low, self.placement = situation.policy.low, placement
        assigned = placement.assignments is not None
        self.rules = CastRules(situation, fold=fold, scalars=assigned)
        self.groups: dict[tuple[CastKey, Folding], _Group] = {}

    def build(self, outputs: tuple[str, ...]) -> tuple[Cast, ...]:
        for op in self.graph.ops:
            self._read(op)
            self.rules.write(op)
            self._define(op)
        sources = output_sources(self.graph)
        for index, (name, dtype) in enumerate(zip(sources, outputs, strict=True)):
            if self.placement.stored[name] != dtype:
                self._add(None, index, name, dtype, "")
        stored = self._stored_weights()
        return (
            *stored,
            *(self._cast(*key, group) for key, group in self.groups.items()),
        )

    def _read(self, op: Op) -> None:
        placed = self.placement.ops[op.name]
        for index, (name, wanted) in enumerate(
            zip(op.operands, placed.operands, strict=True)
        ):
            other = self.placement.stored[name] != wanted
            other = other and self.rules.may_cast(op, index)
            if other and not self._is_made(name, wanted):
                self._add(op, index, name, wanted, self._folding(op, index, wanted))

    def _is_made(self, name: str, dtype: str) -> bool:
        """Return whether ``name`` was made in ``dtype``, and stored in another.

        A storage written in place is read in its stored dtype, and so is a value that
        is returned.
        """
        maker = self.graph.producer.get(name)
        if maker is None or self.graph.storage(name) in self.graph.written:
            return False
        if name in self.at.returned.values:
            return False
        made = self.placement.ops[maker.name].results
        return made[maker.results.index(name)] == dtype

    def _define(self, op: Op) -> None:
        """Cast a result at its definition if its stored dtype is another."""
        for name, made in zip(
            op.results, self.placement.ops[op.name].results, strict=True
        ):
            stored = self.placement.stored[name]
            if made == stored:
                continue
            key = self.rules.made_key(op, name, stored)
            uses = self.rules.made_uses(name)
            why = "some op writes it in place in full precision"
            if name in self.at.returned.values:
                why = "it is returned, and its readers read what a caller gets"
            elif self.graph.storage(name) not in self.graph.written:
                why = "rows of a table that is stored low for other readers"
                uses = [use for use in uses if self._reads(*use, stored)]
            if uses:
                self.groups[key, ""] = _Group(op, made, why, uses)

    def _reads(self, user: str, index: int, dtype: str) -> bool:
        placed = self.placement.ops.get(user)  # an output is no op
        return placed is None or placed.operands[index] == dtype

    def _folding(self, op: Op, index: int, wanted: str) -> Folding:
        """Return how the kernel itself does this cast; empty if it cannot."""
        if found := self.rules.folding(op, index):
            return found
        promoted = self.rules.promotion(op, self.placement.stored)
        return "kernel" if promoted == wanted else ""

    def _add(
        self, op: Op | None, index: int, name: str, wanted: str, folding: Folding
    ) -> None:
        key = self.rules.key(op, index, name, wanted, folded=bool(folding))
        why = self._why(op, index, wanted)
        group = self.groups.setdefault(
            (key, folding), _Group(op, self.placement.stored[name], why)
        )
        group.uses.append((op.name if op else OUTPUT, index))

    def _why(self, op: Op | None, index: int, wanted: str) -> str:
        if op is None:
            state = dict(self.graph.states).get(index)
            if state and self.graph.is_dtype(state, wanted):
                return f"a state keeps the dtype it is stored in: %{state} is {wanted}"
            return "outputs keep the dtype they were traced with"
        found = self.at.classes[op.name]
        if found.reason is Reason.PROMOTION:
            return found.why
        return f"{op.canonical} ({found.op_class}) reads {wanted}"

    def _stored_weights(self) -> Iterator[Cast]:
        for value in self.graph.inputs():
            if value.name in self.at.low_weights and self.graph.users[value.name]:
                readers = [(op.name, i) for op, i in self.graph.users[value.name]]
                group = _Group(
                    self.graph.users[value.name][0][0],
                    value.dtype,
                    "every use is low, so it is stored low, once",
                    readers,
                )
                key = CastKey(value.name, self.low, "", 0, False, 1)
                yield self._cast(key, "storage", group)

    def _cast(self, key: CastKey, folding: Folding, group: _Group) -> Cast:
        value = self.graph.values[key.value]
        sizes = itemsize(group.from_dtype), itemsize(key.to_dtype)
        producer = self.graph.producer.get(key.value)
        return Cast(
            value=key.value,
            from_dtype=group.from_dtype,
            to_dtype=key.to_dtype,
            shape=value.shape,
            bytes=0 if folding else cast_bytes(value.elements, *sizes, key.trips),
            producer=producer.name if producer else "",
            uses=tuple(group.uses),
            is_weight=self.rules.is_static(key.value),
            folded=bool(folding),
            folding=folding,
            saturate=key.saturate,
            region=key.region,
            trips=key.trips,
            why=group.why,
            path=group.first.path if group.first else "",
            source=group.first.source if group.first else "",
        )
