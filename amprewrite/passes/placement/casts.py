"""The casts of a placement: where a value is stored and read in different dtypes.

There is one cast per value, dtype and region, shared by all readers; a value that is
written in place after its cast is cast again. A cast done by the reading kernel itself
is listed as folded, and so is that of a weight stored low from the start.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from amprewrite.dtypes import itemsize
from amprewrite.ir import Op, ProgramGraph
from amprewrite.passes.analysis.context import Placement, Situation
from amprewrite.passes.analysis.values import extreme_values, moved_inputs
from amprewrite.passes.cost.cost_model import cast_bytes
from amprewrite.plan import OUTPUT, Cast
from amprewrite.plan.fields import Folding
from amprewrite.plan.uses import output_sources, uses_of
from amprewrite.policy import OpClass, Reason
from amprewrite.policy.model import FOLLOW, PROMOTE

# Rules of casts: sharing between uses, folding into kernels, saturation.
#
# The casts of a plan (:func:`build_casts`) and the payments of the integer program
# (:mod:`amprewrite.passes.placement.optimal`) follow from these rules. Both are priced
# as :func:`amprewrite.passes.cost.cost.plan_cost` prices a plan, so that the value of
# the program is the cost of the plan.

ON_THE_SPOT = -1
"""Version of a value that is cast where it is made, before anything is written."""


class CastKey(NamedTuple):
    """Key of a cast: uses with equal keys share it.

    Attributes:
        value: The value.
        to_dtype: Dtype to which it is cast.
        region: Body in which it is cast; empty for the top level.
        version: How often its storage was written in place before; ``ON_THE_SPOT``
            for a result that is cast where it is made.
        saturate: Whether numbers out of range become the largest finite number.
        trips: Iterations of the loops around it, multiplied.
    """

    value: str
    to_dtype: str
    region: str
    version: int
    saturate: bool
    trips: int


class CastRules:
    """Rules of the casts of one program, applied in program order.

    Attributes:
        fold: Whether casts of weights are done once, at conversion.
        scalars: Whether promoting kernels convert scalars beside tensors.
    """

    def __init__(
        self, situation: Situation, *, fold: bool, scalars: bool = True
    ) -> None:
        """Start before the first op.

        Args:
            situation: Facts known before placement.
            fold: Whether casts of weights are done once, at conversion.
            scalars: Whether promoting kernels convert scalars beside tensors.
                Placement ``promote`` is older than this rule and casts them.
        """
        self.at, self.fold, self.scalars = situation, fold, scalars
        self.graph, self.values = situation.graph, situation.graph.values
        self.low, self.full = situation.policy.low, situation.policy.full
        self._extreme = (
            extreme_values(self.graph, situation.classes, self.low)
            if self.low
            else frozenset[str]()
        )
        self._given = moved_inputs(self.graph, situation.classes)
        self._versions: Counter[str] = Counter()

    def write(self, op: Op) -> None:
        """Start new versions of the storages that ``op`` writes, for new casts."""
        if op.mutates:
            storages = (self.graph.storage(op.operands[i]) for i in op.mutates)
            self._versions.update(storages)

    def key(
        self, op: Op | None, index: int, name: str, dtype: str, *, folded: bool = False
    ) -> CastKey:
        """Return the key that uses of ``name`` as ``dtype`` share with one another.

        Args:
            op: The op that reads; None for an output.
            index: Number of the operand, or of the output.
            name: The value that is read.
            dtype: Dtype in which it is read.
            folded: Whether the kernel casts it, which saturates nothing.
        """
        masked = op is not None and index in op.masks
        narrow = dtype == self.low and not folded
        masked = masked or (op is not None and self._adds(op, index, name))
        saturate = narrow and (masked or name in self._extreme)
        version = self._versions[self.graph.storage(name)] if self._versions else 0
        region, trips = (op.around, op.trips) if op else ("", 1)
        return CastKey(name, dtype, region, version, saturate, trips)

    def _adds(self, op: Op, index: int, name: str) -> bool:
        """Return whether ``op`` adds or selects an argument: it may be a mask."""
        if name not in self._given:
            return False
        if op.traits.addend_first:
            return index == 0
        op_class, several = self.at.classes[op.name].op_class, len(op.operands) > 1
        sums = op_class is PROMOTE and not op.traits.scales
        return several and (sums or op_class is FOLLOW)

    def made_key(self, op: Op, name: str, dtype: str) -> CastKey:
        """Return the key of the cast of a result that is stored as another ``dtype``.

        Args:
            op: The op that makes it.
            name: The result.
            dtype: Dtype in which it is stored.
        """
        return CastKey(name, dtype, op.region, ON_THE_SPOT, False, op.trips)

    def made_uses(self, name: str) -> list[tuple[str, int]]:
        """Return the uses of a result cast where it is made; no cast without any."""
        return [*uses_of(self.graph, name)]

    def may_cast(self, op: Op, index: int) -> bool:
        """Return whether an operand may be cast, not being written in place."""
        return index not in op.mutates

    def folding(self, op: Op, index: int) -> Folding:
        """Return the way in which a cast of an operand is free under every assignment.

        ``kernel``: the kernel reads every dtype, or converts a scalar; ``copy``: a
        weight that is kept in both; ``dtype``: the kernel has a dtype argument. Empty
        where that depends on how the other operands are stored, see
        :meth:`promotion`, or where a cast is needed.
        """
        if op.operand_rule == "any":
            saturates = bool(op.mutates) and op.operands[index] in self._extreme
            return "" if saturates else "kernel"
        if self.fold and not op.around and self.may_copy(op.operands[index]):
            return "copy"
        if not op.reads and index == 0 and self.at.takes_dtype(op):
            return "dtype"
        if self.scalars and self.promotes(op) and self.adapts(op, op.operands[index]):
            return "kernel"
        return ""

    def promotion(self, op: Op, stored: Mapping[str, str]) -> str:
        """Return the dtype to which the kernel of ``op`` converts operands by itself.

        It is full if one of :meth:`promoted` is stored full; empty for kernels that do
        not promote.

        Args:
            op: The op.
            stored: Dtype in which each value is stored.
        """
        if not self.promotes(op):
            return ""
        wide = any(stored[name] == self.full for name in self.promoted(op))
        return self.full if wide else self.low

    def promotes(self, op: Op) -> bool:
        """Return whether the kernel of ``op`` promotes its operands by itself."""
        return op.operand_rule == "promote" and not op.reads

    def promoted(self, op: Op) -> list[str]:
        """Return the operands that determine the dtype to which a kernel promotes.

        They are those of the full dtype with dimensions, without them all of it.
        """
        names = [name for name in op.operands if self.values[name].dtype == self.full]
        return [name for name in names if self.values[name].shape] or names

    def adapts(self, op: Op, name: str) -> bool:
        """Return whether ``name`` is a scalar beside full tensors.

        A kernel that promotes converts it to their dtype, whatever it is.
        """
        if self.values[name].shape:
            return False
        return any(self.values[other].shape for other in self.promoted(op))

    def may_copy(self, name: str) -> bool:
        """Return whether a weight may be kept in two dtypes.

        One of the full dtype has no low copy beside it: low precision is to save
        memory. Tables that the model itself has in another dtype may have one.
        """
        lowered = bool(self.low) and self.values[name].dtype == self.full
        return not lowered and self.is_static(name)

    def is_static(self, name: str) -> bool:
        """Return whether ``name`` is a weight at every run, also one moved about."""
        value = self.values[name]
        if value.kind in ("parameter", "buffer", "constant"):
            return value.alias not in self.at.mutated
        roots = self.at.weights.get(name, frozenset[str]())
        return bool(roots) and all(self.values[r].kind != "result" for r in roots)


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


# Hoisting of casts out of loops: a value that enters a loop is cast once.
#
# It is done only if no gradient is taken through the program. With the cast in the
# body, the gradients of all iterations add up in full precision; through one cast
# before the loop they would add up in low. (The gradient of a 4096-step RNN then had
# relative error 0.13 in bfloat16, and 2e-3 with the cast in the body.)


def loop_entries(graph: ProgramGraph, full: str) -> frozenset[str]:
    """Return the ops by which full values enter a body that iterates.

    Args:
        graph: The program.
        full: Name of the full dtype.
    """
    return frozenset(
        op.name
        for op in graph.ops
        if op.canonical == "enter"
        and not (op.fence or op.reads)
        and all(graph.is_dtype(name, full) for name in (*op.operands, *op.results))
        and any(user.trips > op.trips for user, _ in graph.users[op.results[0]])
    )


def find_hoisted(situation: Situation, placement: Placement) -> frozenset[str]:
    """Return the loop entries with values that are low at every read.

    A cast before the entry gives the same bits at each read: data movement is exact
    under a cast. A value that some op of the body reads in full stays full.

    Args:
        situation: The facts before placement.
        placement: The placement with all casts in the bodies.
    """
    finder = _Finder(situation, placement)
    return frozenset(
        op.name
        for op in reversed(situation.graph.ops)
        if finder.take(op) and op.name in situation.entries
    )


class _Finder:
    """Backward pass that collects the values that are only read low."""

    def __init__(self, situation: Situation, placement: Placement) -> None:
        self.at, self.placement = situation, placement
        self.graph, self.low = situation.graph, situation.policy.low
        self.read_low: set[str] = set()

    def take(self, op: Op) -> bool:
        """Return whether ``op`` only moves a full value that is only read low."""
        moves = self._moves(op)
        low = moves and all(self._is_read_low(name) for name in op.results)
        if low:
            self.read_low.update(op.results)
        return low

    def _moves(self, op: Op) -> bool:
        """Return whether ``op`` moves one full value within a body, or into a loop."""
        placed = self.placement.ops[op.name]
        names = {n for n in op.operands if self.graph.is_dtype(n, self.at.policy.full)}
        entry = op.canonical != "enter" or op.name in self.at.entries
        return (
            self.at.classes[op.name].op_class is OpClass.FOLLOW
            and op.canonical not in ("leave", "cast")
            and entry
            and not op.mutates
            and len(names) == 1
            and placed.precision == self.at.policy.full
        )

    def _is_read_low(self, name: str) -> bool:
        uses = self.graph.users[name]
        if not uses or name in self.graph.outputs or self._is_written(name):
            return False
        return all(self._reads_low(op, index) for op, index in uses)

    def _is_written(self, name: str) -> bool:
        return self.graph.storage(name) in self.graph.written

    def _reads_low(self, op: Op, index: int) -> bool:
        if index in op.masks:  # its cast saturates
            return False
        moved = op.results and self.read_low.issuperset(op.results)
        return bool(moved) or self.placement.ops[op.name].operands[index] == self.low
