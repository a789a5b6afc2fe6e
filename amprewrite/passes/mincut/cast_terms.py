"""The casts that each use of a value may need, as terms of a cut.

The rules for sharing and folding casts are those of the plan's casts, see
:mod:`amprewrite.passes.placement.cast_rules`; so are the prices.
"""

from amprewrite.dtypes import itemsize
from amprewrite.ir import Op
from amprewrite.passes.analysis.context import Situation
from amprewrite.passes.cost.cost_model import CostModel
from amprewrite.passes.cost.fusion import Fusion
from amprewrite.passes.cost.moved_bytes import cast_bytes
from amprewrite.passes.mincut.max_flow import FULL, LOW
from amprewrite.passes.mincut.shared_casts import Group, Groups
from amprewrite.passes.mincut.unary_costs import Ledger
from amprewrite.passes.placement.cast_rules import CastKey, CastRules
from amprewrite.plan import OUTPUT

WRITTEN = "written"
"""Region in the keys of values written by kernels; no real region has this name."""


class CastTerms:
    """All casts of a program, entered in program order.

    Attributes:
        groups: The casts, and the ops that promote for free.
        stored: Variable of the precision in which each full value is stored.
        anchors: Variables that are full where an op that reads them is: weights.
    """

    def __init__(
        self, situation: Situation, model: CostModel, ledger: Ledger, *, fold: bool
    ) -> None:
        """Start without casts.

        Args:
            situation: The facts before placement.
            model: Prices of the target.
            ledger: Ledger that receives the costs.
            fold: Whether casts of weights are done once, at conversion.
        """
        self.model, self.ledger = model, ledger
        self.rules = CastRules(situation, fold=fold)
        self.graph, self.values = situation.graph, situation.graph.values
        self.full, self.low = situation.policy.full, situation.policy.low
        self.fusion = Fusion(self.graph, situation.classes, model)
        self.groups, self.stored = Groups(), dict[str, int]()
        self.anchors = set[int]()
        self._known = set[tuple[str, str]]()

    def _price(self, key: CastKey, from_size: int, to_size: int) -> int:
        elements = self.values[key.value].elements
        moved = cast_bytes(elements, from_size, to_size, key.trips)
        return moved + key.trips * self.model.launch

    def _is_paid(self, op: Op, index: int) -> bool:
        """Return whether a cast of an operand is a kernel of its own."""
        if not self.rules.may_cast(op, index) or self.rules.folding(op, index):
            return False
        return not self.fusion.absorbs(op.operands[index], (op.name,))

    def read(self, op: Op, index: int, wanted: int, *, only_up: bool) -> None:
        """Charge the casts of an operand of the full dtype.

        Args:
            op: The reader.
            index: Index of the operand.
            wanted: Variable of the precision in which it is read.
            only_up: Whether a low op accepts the operand in full.
        """
        name = op.operands[index]
        stored = self.stored[name]
        if stored == wanted or not self._is_paid(op, index):
            return
        if wanted != FULL and stored != LOW and not only_up:
            self._group(op, index, name, up=False).uses.append(wanted)
        if wanted != LOW and stored != FULL and not self.rules.promotes(op):
            self._group(op, index, name, up=True).uses.append(wanted)

    def read_as(self, op: Op, index: int, dtype: str) -> None:
        """Charge the cast of an operand to a known dtype."""
        if self._is_paid(op, index):
            self._cast_as(op, index, op.operands[index], dtype)

    def keep(self, name: str, wanted: int | str) -> None:
        """Charge the write of a value, by its generated kernel, for one use.

        Args:
            name: The value; a kernel writes it once in each wanted dtype.
            wanted: Variable of the precision in which it is read from memory, or its
                dtype, if that is neither low nor full or the value has no variable of
                its own.
        """
        origin = self.fusion.origin(name)
        if isinstance(wanted, str):
            if (origin, wanted) not in self._known:
                self._known.add((origin, wanted))
                self.ledger.constant += self.fusion.written(origin, itemsize(wanted))
            return
        for dtype, never, up in ((self.low, FULL, False), (self.full, LOW, True)):
            key = CastKey(origin, dtype, WRITTEN, 0, False, 0)
            group = self.groups.by_key.get(key)
            if group is None:
                cost = self.fusion.written(origin, itemsize(dtype))
                group = self.groups.by_key[key] = Group(never, cost, up)
            group.uses.append(wanted)

    def hand_back(self, name: str, dtype: str) -> None:
        """Charge the cast of an output."""
        variable = {self.full: FULL, self.low: LOW}.get(dtype)
        if self.fusion.is_versioned(name):
            assignable = name in self.stored and variable is not None
            self.keep(name, variable if assignable and variable is not None else dtype)
        if self.fusion.absorbs(name, (OUTPUT,)):
            return
        if name not in self.stored or variable is None:
            self._cast_as(None, 0, name, dtype)
        elif variable != self.stored[name]:
            self._group(None, 0, name, up=variable == FULL).uses.append(variable)

    def on_the_spot(self, op: Op, name: str, made: int) -> None:
        """Charge the cast of a low result of ``op`` into a full storage."""
        readers = [user for user, _ in self.rules.made_uses(name)]
        if readers and not self.fusion.absorbs(name, readers):
            key = self.rules.made_key(op, name, self.full)
            cost = self._price(key, self.ledger.low_size, self.ledger.full_size)
            self.ledger.terms.pay(self.stored[name], made, cost)

    def _group(self, op: Op | None, index: int, name: str, *, up: bool) -> Group:
        key = self.rules.key(op, index, name, self.full if up else self.low)
        found = self.groups.by_key.get(key)
        if found is None:
            cost = self._price(key, self.ledger.low_size, self.ledger.full_size)
            found = self.groups.by_key[key] = Group(self.stored[name], cost, up)
        return found

    def _cast_as(self, op: Op | None, index: int, name: str, dtype: str) -> None:
        """Charge a cast with a dtype other than low and full, or with both known."""
        traced = self.values[name].dtype
        if name not in self.stored and dtype == traced:
            return
        key = self.rules.key(op, index, name, dtype)
        if key in self.groups.by_key:
            return
        self.groups.by_key[key] = Group(FULL, 0, up=True)
        if name in self.stored:
            self.ledger.size(self.stored[name], key.trips * self.values[name].elements)
            size = 0
        else:
            size = itemsize(traced)
        self.ledger.constant += self._price(key, size, itemsize(dtype))

    def promote(self, op: Op, own: int, *, anchored: bool) -> None:
        """Charge the widening casts of an op with a promoting kernel.

        Args:
            op: The op.
            own: Variable of the op.
            anchored: Whether a weight that it reads is full if the op is.
        """
        shaped = list(dict.fromkeys(self.rules.promoted(op)))
        variables = [self.stored[name] for name in shaped]
        if FULL in variables or (anchored and not self.anchors.isdisjoint(variables)):
            return
        pairs: list[tuple[int, Group | None]] = []
        for name in shaped:
            index = op.operands.index(name)
            paid = self._is_paid(op, index)
            group = self._group(op, index, name, up=True) if paid else None
            pairs.append((self.stored[name], group))
        self.groups.mix(own, pairs)
