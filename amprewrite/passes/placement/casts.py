"""The casts of a placement: where a value is stored and read in different dtypes.

There is one cast per value, dtype and region, shared by all readers; a value that is
written in place after its cast is cast again. A cast done by the reading kernel itself
is listed as folded, and so is that of a weight stored low from the start.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from amprewrite.dtypes import itemsize
from amprewrite.ir import Op
from amprewrite.passes.analysis.context import Placement, Situation
from amprewrite.passes.analysis.weights_and_literals import extreme_values
from amprewrite.plan import OUTPUT, Cast
from amprewrite.plan.uses import output_sources, uses_of
from amprewrite.policy import Reason


@dataclass(frozen=True, slots=True)
class _Key:
    """Key that uses must have in common to share a cast."""

    value: str
    to_dtype: str
    region: str
    version: int
    folding: str
    saturate: bool
    trips: int


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
        self.at, self.fold = situation, fold
        self.graph = situation.graph
        self.placement = placement
        self.full, low = situation.policy.full, situation.policy.low
        self.extreme = (
            extreme_values(self.graph, situation.classes, low) if low else set[str]()
        )
        self.versions: Counter[str] = Counter()
        self.groups: dict[_Key, _Group] = {}

    def build(self, outputs: tuple[str, ...]) -> tuple[Cast, ...]:
        for op in self.graph.ops:
            self._read(op)
            self.versions.update(self.graph.storage(op.operands[i]) for i in op.mutates)
            self._define(op)
        sources = output_sources(self.graph)
        for index, (name, dtype) in enumerate(zip(sources, outputs, strict=True)):
            if self.placement.stored[name] != dtype:
                self._add(None, index, name, dtype, "")
        stored = self._stored_weights()
        return (
            *stored,
            *(self._cast(key, group) for key, group in self.groups.items()),
        )

    def _read(self, op: Op) -> None:
        placed = self.placement.ops[op.name]
        for index, (name, wanted) in enumerate(
            zip(op.operands, placed.operands, strict=True)
        ):
            other = self.placement.stored[name] != wanted
            if other and index not in op.mutates and not self._is_made(name, wanted):
                self._add(op, index, name, wanted, self._folding(op, index, wanted))

    def _is_made(self, name: str, dtype: str) -> bool:
        """Return whether ``name`` was made in ``dtype``, and stored in another.

        A storage written in place is read in its stored dtype.
        """
        maker = self.graph.producer.get(name)
        if maker is None or self.graph.storage(name) in self.graph.written:
            return False
        made = self.placement.ops[maker.name].results
        return made[maker.results.index(name)] == dtype

    def _is_static(self, name: str) -> bool:
        """Return whether ``name`` is a weight, or a moved weight, at every run."""
        value = self.graph.values[name]
        if value.kind in ("parameter", "buffer", "constant"):
            return value.alias not in self.at.mutated
        roots = self.at.weights.get(name, frozenset[str]())
        return bool(roots) and all(
            self.graph.values[root].kind != "result" for root in roots
        )

    def _may_copy(self, name: str) -> bool:
        """Return whether a weight may be kept in two dtypes.

        A weight of the full dtype has no low copy beside it: low precision is to save
        memory. A weight of another dtype, mixed by the model itself, may have one.
        """
        lowered = bool(self.at.policy.low) and self.graph.is_dtype(name, self.full)
        return not lowered and self._is_static(name)

    def _define(self, op: Op) -> None:
        """Cast a result at its definition if its stored dtype is another."""
        for index, name in enumerate(op.results):
            made = self.placement.ops[op.name].results[index]
            stored = self.placement.stored[name]
            if made == stored:
                continue
            key = _Key(name, stored, op.region, -1, "", saturate=False, trips=op.trips)
            uses = [*uses_of(self.graph, name)]
            why = "some op writes it in place in full precision"
            if self.graph.storage(name) not in self.graph.written:
                why = "rows of a table that is stored low for other readers"
                uses = [*self._readers(name, stored)]
            if uses:
                self.groups[key] = _Group(op, made, why, uses)

    def _readers(self, name: str, dtype: str) -> Iterator[tuple[str, int]]:
        """Yield the uses of ``name`` that read it in ``dtype``."""
        for user, index in uses_of(self.graph, name):
            placed = self.placement.ops.get(user)  # an output is no op
            if placed is None or placed.operands[index] == dtype:
                yield user, index

    def _folding(self, op: Op, index: int, wanted: str) -> str:
        """Return how the cast is folded into the kernel; empty if it cannot be."""
        if op.operand_rule == "any":
            return "kernel"
        if self.fold and not op.around and self._may_copy(op.operands[index]):
            return "copy"
        if op.reads:  # the kernel may promote by other rules
            return ""
        if index == 0 and self.at.takes_dtype(op):
            return "dtype"
        if op.operand_rule == "promote" and self._promotes(op, index, wanted):
            return "kernel"
        return ""

    def _promotes(self, op: Op, index: int, wanted: str) -> bool:
        """Return whether a promoting kernel converts operand ``index`` itself.

        A scalar beside tensors that were cast is always converted; placement
        ``promote`` is older than this rule and casts it.
        """
        if self.placement.assignments is not None:
            values = self.graph.values
            scalar = not values[op.operands[index]].shape
            beside = (n for n in op.operands if self.graph.is_dtype(n, self.full))
            if scalar and any(values[name].shape for name in beside):
                return True
        return self._kernel_computes(op) == wanted

    def _kernel_computes(self, op: Op) -> str:
        """Return the dtype that a promoting kernel computes in for stored operands.

        Only operands with dimensions count, unless there are none.
        """
        full = self.full
        names = [name for name in op.operands if self.graph.is_dtype(name, full)]
        shaped = [name for name in names if self.graph.values[name].shape] or names
        wide = any(self.placement.stored[name] == full for name in shaped)
        return full if wide else self.at.policy.low

    def _add(
        self, op: Op | None, index: int, name: str, wanted: str, folding: str
    ) -> None:
        version = self.versions[self.graph.storage(name)]
        masked = op is not None and index in op.masks
        narrow = wanted == self.at.policy.low
        saturate = narrow and not folding and (masked or name in self.extreme)
        region, trips = (op.around, op.trips) if op else ("", 1)
        key = _Key(name, wanted, region, version, folding, saturate, trips)
        why = self._why(op, index, wanted)
        group = self.groups.setdefault(
            key, _Group(op, self.placement.stored[name], why)
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
                low = self.at.policy.low
                key = _Key(value.name, low, "", 0, "storage", saturate=False, trips=1)
                yield self._cast(key, group)

    def _cast(self, key: _Key, group: _Group) -> Cast:
        value = self.graph.values[key.value]
        sizes = itemsize(group.from_dtype) + itemsize(key.to_dtype)
        producer = self.graph.producer.get(key.value)
        return Cast(
            value=key.value,
            from_dtype=group.from_dtype,
            to_dtype=key.to_dtype,
            shape=value.shape,
            bytes=0 if key.folding else value.elements * sizes * key.trips,
            producer=producer.name if producer else "",
            uses=tuple(group.uses),
            is_weight=self._is_static(key.value),
            folded=bool(key.folding),
            folding=key.folding,
            saturate=key.saturate,
            region=key.region,
            trips=key.trips,
            why=group.why,
            path=group.first.path if group.first else "",
            source=group.first.source if group.first else "",
        )
