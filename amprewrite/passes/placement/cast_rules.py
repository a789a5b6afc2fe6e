"""Rules of casts: sharing between uses, folding into kernels, saturation.

The casts of a plan (:mod:`amprewrite.passes.placement.casts`) and the payments of the
integer program (:mod:`amprewrite.passes.placement.optimal`) follow from these rules.
Both are priced as :func:`amprewrite.passes.cost.cost.plan_cost` prices a plan, so that
the value of the program is the cost of the plan.
"""

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from amprewrite.ir import Op
from amprewrite.passes.analysis.context import Situation
from amprewrite.passes.analysis.weights_and_literals import extreme_values, moved_inputs
from amprewrite.plan.fields import Folding
from amprewrite.plan.uses import uses_of
from amprewrite.policy.model import FOLLOW, PROMOTE

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
