"""The cost of every placement of a program, as terms of a minimum cut.

One variable says the side of an op, and where a contraction can hand back its sums a
second one the side of its results; a weight that may be stored low has one, and so has
a storage that is written in place. What the terms say of a placement is what
:func:`amprewrite.passes.cost.plan_cost` says of the plan made of it.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from amprewrite.dtypes import itemsize
from amprewrite.ir import Op
from amprewrite.passes.classify import USER_CAST
from amprewrite.passes.cost import Objective
from amprewrite.passes.cost_model import Fusion, is_view, lost_speed, read_elements
from amprewrite.passes.facts import extreme_values
from amprewrite.passes.freedom import Freedom, storable_weights
from amprewrite.passes.groups import Group, Groups, Key
from amprewrite.passes.network import FULL, LOW, Flags, Terms
from amprewrite.passes.placement import Placement, Side, Situation
from amprewrite.passes.storage import moves_weights
from amprewrite.passes.walk import Walk
from amprewrite.plan import OUTPUT
from amprewrite.policy import OpClass


@dataclass(frozen=True)
class Problem:
    """A program as a cut.

    Attributes:
        freedom: What there is to decide.
        terms: Terms whose cost is the same in every relaxation.
        groups: The casts, and the ops that promote for free.
        constant: What every placement costs.
        variables: Number of variables, with the two constants.
        reads: Variable of the side on which each sided op computes.
        makes: Variable of the side on which it makes its results, where another.
    """

    freedom: Freedom
    terms: Terms
    groups: Groups
    constant: int
    variables: int
    reads: Mapping[str, int]
    makes: Mapping[str, int]

    def sides(self, full: Flags) -> dict[str, Side]:
        """Return the sides of ops, given which variables are full."""
        found: dict[str, Side] = {}
        for name, reads in self.reads.items():
            sums = name in self.makes and full[self.makes[name]]
            found[name] = "full" if full[reads] else "sums" if sums else "low"
        return found


def build_problem(
    situation: Situation,
    freedom: Freedom,
    outputs: Iterable[str],
    objective: Objective,
    *,
    training: bool,
) -> Problem:
    """Return the cost of every placement of a program.

    Args:
        situation: What is known before placement.
        freedom: What there is to decide.
        outputs: Dtype in which each output is handed back.
        objective: What things cost.
        training: Whether parameters keep their dtype, and casts of weights run.
    """
    builder = _Builder(situation, freedom, objective, training=training)
    return builder.build(tuple(outputs))


class _Builder:
    def __init__(
        self,
        situation: Situation,
        freedom: Freedom,
        objective: Objective,
        *,
        training: bool,
    ) -> None:
        self.at, self.freedom, self.objective = situation, freedom, objective
        self.graph, self.classes = situation.graph, situation.classes
        self.values, self.fold = situation.graph.values, not training
        self.full, self.low = situation.policy.full, situation.policy.low
        self.low_size, self.full_size = itemsize(self.low), itemsize(self.full)
        self.fusion = Fusion(self.graph, self.classes, objective.model)
        self.terms, self.groups, self.constant = Terms(), Groups(), 0
        self.alone = [0, 0]  # by side: what it costs more to be full than low
        self.static = frozenset(filter(self._is_static, self.values))
        self.walk = Walk(situation, frozenset(), frozenset(), Placement())
        self.storable = storable_weights(situation, training=training)
        self.extreme = extreme_values(self.graph, self.classes, self.low)
        self.versions: Counter[str] = Counter()
        self.stored: dict[str, int] = {}
        self.reads = {name: self._new() for name in freedom.sided}
        self.makes = {
            name: self._new() for name in freedom.sided if name in freedom.sums
        }
        self.written: dict[str, int] = {}
        self.weights: dict[str, int] = {}
        self.anchors: set[int] = set()  # full where an op that reads them is

    def build(self, outputs: tuple[str, ...]) -> Problem:
        self._tie_storages()
        self._find_weights()
        for value in self.graph.inputs():
            if value.dtype == self.full:
                self.stored[value.name] = self.weights.get(value.name, FULL)
        for op in self.graph.ops:
            own = self._side(op)
            view = is_view(self.graph, op)
            self._read(op, own, view=view)
            if op.mutates:
                written = (self.graph.storage(op.operands[i]) for i in op.mutates)
                self.versions.update(written)
            self._make(op, own, view=view)
        pairs = zip(self.graph.outputs, outputs, strict=True)
        for name, dtype in dict.fromkeys(pairs):
            self._cast(None, 0, name, self._side_of(dtype), dtype)
        if self.objective.errors:
            for name, side in self.stored.items():
                self._pay_low(side, self.objective.error(name))
        self._pay_alone()
        count = self.groups.add_to(self.terms, len(self.alone))
        return Problem(
            self.freedom,
            self.terms,
            self.groups,
            self.constant,
            count,
            self.reads,
            self.makes,
        )

    # --- variables -----------------------------------------------------------------

    def _new(self) -> int:
        self.alone.append(0)
        return len(self.alone) - 1

    def _either(self, sides: Iterable[int]) -> int:
        """Return a variable that is full where one of ``sides`` is."""
        found = set(sides)
        if FULL in found or len(found) == 1:
            return FULL if FULL in found else found.pop()
        new = self._new()
        for side in sorted(found):
            self.terms.imply(side, new)
        return new

    def _side_of(self, dtype: str) -> int | None:
        return {self.full: FULL, self.low: LOW}.get(dtype)

    def _tie_storages(self) -> None:
        freedom = self.freedom
        for storage in {*freedom.members, *freedom.makers, *freedom.full_storages}:
            fixed = storage in freedom.full_storages
            self.written[storage] = FULL if fixed else self._new()
        for storage, names in freedom.members.items():
            for name in names:
                side = self.reads.get(name, FULL)
                self.terms.imply(side, self.written[storage])
                self.terms.imply(self.written[storage], side)
        for storage, names in freedom.makers.items():
            for name in names:
                self.terms.imply(self.reads.get(name, FULL), self.written[storage])

    def _find_weights(self) -> None:
        """Give a variable to each weight that an op may read low: full if one does so.

        Tied the other way it need not be: a weight that is stored full costs more.
        """
        if not self.storable:
            return
        readers: dict[str, set[int]] = {}
        casting: set[str] = set()  # weights that some op casts if it is low
        for op in self.graph.ops:
            if op.name in self.freedom.moved or self._follows(op):
                continue
            for index, name in enumerate(op.operands):
                roots = self.at.weights.get(name, frozenset[str]()) & self.storable
                side = self._wanted(op, index) if roots else None
                if side is not None:
                    casting |= frozenset[str]() if self._is_beside(op, index) else roots
                    for root in roots:
                        readers.setdefault(root, set()).add(side)
        for root in sorted(casting):
            if FULL not in readers[root]:
                self.weights[root] = self._new()
                self.anchors.add(self.weights[root])
                for side in sorted(readers[root]):
                    self.terms.imply(side, self.weights[root])

    def _follows(self, op: Op) -> bool:
        """Whether a user's cast moves a weight about."""
        return op.canonical == USER_CAST and not op.fence and moves_weights(self.at, op)

    def _side(self, op: Op) -> int:
        """Return the variable of the side on which ``op`` computes."""
        if op.name in self.freedom.moved:
            side = self._either(self.stored[n] for n in self.walk.strong(op))
            if moves_weights(self.at, op):
                self.anchors.add(side)
            return side
        return self.reads.get(op.name, FULL)

    def _wanted(self, op: Op, index: int) -> int | None:
        """Return the side on which a full operand is read; None for as it is stored."""
        if op.reads:
            return self._side_of(op.reads[index])
        if index in op.mutates or (op.canonical == USER_CAST and not op.fence):
            return None
        keeps = self.classes[op.name].op_class is OpClass.KEEP
        if keeps and op.mixing == "any" and not op.fence:
            return None
        return self.reads.get(op.name, FULL)

    # --- what an op reads ----------------------------------------------------------

    def _read(self, op: Op, own: int, *, view: bool) -> None:
        for index, name in enumerate(op.operands):
            if name not in self.stored:
                self._read_other(op, index, view=view)
                continue
            wanted = own if op.name in self.freedom.moved else self._wanted(op, index)
            other = op.reads[index] if op.reads else ""
            seen = self._seen(op, index, wanted)
            if not view and self.fusion.in_memory(name):
                inside = op.name in self.fusion.kernels
                count = read_elements(self.graph, op, index)
                if wanted is None and other not in ("", self.full, self.low):
                    self.constant += count * itemsize(other)
                else:
                    self._size(self.stored[name] if inside else seen, count)
            if self.objective.errors and name not in op.operands[:index]:
                self._pay_low(seen, self.objective.error((name, op.name)))
            if index not in op.mutates and (wanted is not None or other):
                self._cast(op, index, name, wanted, other)
        if op.mixing == "promote" and not op.reads:
            self._mix(op, own)
        self._pay_op(op, own)

    def _seen(self, op: Op, index: int, wanted: int | None) -> int:
        """Return the side in which the op sees an operand that it may not have cast."""
        stored = self.stored[op.operands[index]]
        if wanted is None:
            return stored
        if self._is_beside(op, index):
            return self._either((wanted, stored))
        return wanted

    def _is_beside(self, op: Op, index: int) -> bool:
        """Whether an operand may be wider than the low first one."""
        if op.mixing != "lead" or op.name not in self.reads:
            return False
        return any(self.graph.is_dtype(name, self.full) for name in op.operands[:index])

    def _read_other(self, op: Op, index: int, *, view: bool) -> None:
        """An operand that is not of the full dtype: read as traced, or as promoted."""
        name = op.operands[index]
        dtype = op.reads[index] if op.reads else self.values[name].dtype
        if not view and self.fusion.in_memory(name):
            self.constant += read_elements(self.graph, op, index) * itemsize(dtype)
        if dtype != self.values[name].dtype and index not in op.mutates:
            self._cast(op, index, name, self._side_of(dtype), dtype)

    def _pay_op(self, op: Op, own: int) -> None:
        op_class = self.classes[op.name].op_class
        if op_class is OpClass.ALLOW and not op.reads:
            self._pay_full(own, lost_speed(self.graph, op, self.objective.model))
        if op.name in self.reads or op.name in self.freedom.moved:
            self._pay_low(own, self.objective.error(op.name))

    # --- what an op makes ----------------------------------------------------------

    def _make(self, op: Op, own: int, *, view: bool) -> None:
        side = self._made(op, own)
        filled = self.classes[op.name].op_class is OpClass.KEEP
        for name in op.results:
            count = self.values[name].elements
            memory = not view and self.fusion.in_memory(name)
            if self.values[name].dtype != self.full:
                if memory:
                    self.constant += count * itemsize(self.values[name].dtype)
                continue
            made = self.weights.get(name, side) if filled else side
            storage = self.graph.storage(name)
            self.stored[name] = self.written.get(storage, made)
            if memory:
                self._size(self._made_in(op, name, made), count)
            if self.stored[name] != made:
                self._cast_on_the_spot(op, name, made)

    def _made_in(self, op: Op, name: str, made: int) -> int:
        """A write is made in what it writes to."""
        if not op.mutates:
            return made
        storage = self.graph.storage(name)
        targets = {self.graph.storage(op.operands[i]) for i in op.mutates}
        return self.stored[name] if storage in targets else made

    def _made(self, op: Op, own: int) -> int:
        if op.name in self.makes:
            self.terms.imply(self.reads[op.name], self.makes[op.name])
            return self.makes[op.name]
        if self._follows(op):
            roots = self.at.weights[op.results[0]]
            known = [self.weights[root] for root in roots if root in self.weights]
            traced = op.dtype_argument == self.full and len(op.results) == 1
            return self._either(known) if traced and len(known) == len(roots) else FULL
        return own

    def _cast_on_the_spot(self, op: Op, name: str, made: int) -> None:
        members = self.freedom.members.get(self.graph.storage(name), ())
        if op.name in members:
            return
        readers = [user.name for user, _ in self.graph.users[name]]
        if not self.fusion.absorbs(name, readers):
            self.terms.pay(self.stored[name], made, self._price(name, self.full_size))

    # --- casts ---------------------------------------------------------------------

    def _price(self, name: str, to_size: int, from_size: int | None = None) -> int:
        wide = self.low_size if from_size is None else from_size
        return self.values[name].elements * (wide + to_size) + self._launch

    @property
    def _launch(self) -> int:
        return self.objective.model.launch

    def _cast(
        self, op: Op | None, index: int, name: str, wanted: int | None, other: str
    ) -> None:
        """Charge the cast of ``name`` for ``op``, or for an output where that is None.

        Args:
            op: Who reads.
            index: Which operand.
            name: The value.
            wanted: Side on which it is read; None if ``other`` is neither low nor full.
            other: The dtype that is read, if it is known.
        """
        if self.fusion.absorbs(name, (op.name if op else OUTPUT,)):
            return
        if op is not None and self._folds(op, index):
            return
        if name not in self.stored or wanted is None:
            self._cast_other(op, index, name, other)
            return
        if wanted != FULL and not (op and self._is_beside(op, index)):
            self._group(op, index, name, up=False).uses.add(wanted)
        promotes = op is not None and op.mixing == "promote" and not op.reads
        if wanted != LOW and not promotes:
            self._group(op, index, name, up=True).uses.add(wanted)

    def _group(self, op: Op | None, index: int, name: str, *, up: bool) -> Group:
        masked = op is not None and index in op.masks
        saturates = not up and (masked or name in self.extreme)
        key = self._key(op, name, self.full if up else self.low, saturates=saturates)
        found = self.groups.by_key.get(key)
        if found is None:
            cost = self._price(name, self.full_size)
            found = self.groups.by_key[key] = Group(self.stored[name], cost, up)
        return found

    def _key(self, op: Op | None, name: str, dtype: str, *, saturates: bool) -> Key:
        version = 0
        if self.versions:
            version = self.versions[self.graph.storage(name)]
        return (name, dtype, op.region if op else "", version, saturates)

    def _cast_other(self, op: Op | None, index: int, name: str, dtype: str) -> None:
        """A cast to or from a dtype that is neither low nor full."""
        traced = self.values[name].dtype
        if not dtype or (name not in self.stored and dtype == traced):
            return
        masked = op is not None and index in op.masks
        saturates = dtype == self.low and (masked or name in self.extreme)
        key = self._key(op, name, dtype, saturates=saturates)
        if key in self.groups.by_key:
            return
        self.groups.by_key[key] = Group(FULL, 0, up=True)
        if name in self.stored:
            self._size(self.stored[name], self.values[name].elements)
            size = 0
        else:
            size = itemsize(traced)
        self.constant += self._price(name, itemsize(dtype), size)

    def _folds(self, op: Op, index: int) -> bool:
        """Whether the cast of an operand costs nothing in both directions."""
        if op.mixing == "any":
            return True
        name = op.operands[index]
        if self.fold and name in self.static and not op.region:
            return True
        if op.reads:
            return False
        denied = self.classes[op.name].op_class is OpClass.DENY
        if op.dtype_knob and denied and index == 0:
            return True
        return op.mixing == "promote" and self._adapts(op, name)

    def _is_static(self, name: str) -> bool:
        value = self.values[name]
        if value.kind in ("parameter", "buffer", "constant"):
            return value.alias not in self.at.mutated
        roots = self.at.weights.get(name, frozenset[str]())
        return bool(roots) and all(self.values[r].kind != "result" for r in roots)

    def _adapts(self, op: Op, name: str) -> bool:
        """Whether ``name`` is a scalar beside tensors, in a kernel that promotes."""
        scalar = not self.values[name].shape
        return scalar and any(self.values[n].shape for n in self._full_names(op))

    def _full_names(self, op: Op) -> Iterator[str]:
        return (name for name in op.operands if name in self.stored)

    def _mix(self, op: Op, own: int) -> None:
        names = list(dict.fromkeys(self._full_names(op)))
        shaped = [name for name in names if self.values[name].shape] or names
        if not shaped or self._is_anchored(op, shaped):
            return
        pairs: list[tuple[int, Group | None]] = []
        for name in shaped:
            index = op.operands.index(name)
            paid = not self.fusion.absorbs(name, (op.name,))
            paid = paid and not self._folds(op, index) and index not in op.mutates
            group = self._group(op, index, name, up=True) if paid else None
            pairs.append((self.stored[name], group))
        self.groups.mix(own, pairs)

    def _is_anchored(self, op: Op, names: list[str]) -> bool:
        """Whether an operand is surely full where ``op`` is: a weight that it reads."""
        if op.name in self.freedom.moved:
            return False
        return any(self.stored[name] in self.anchors for name in names)

    # --- prices --------------------------------------------------------------------

    def _size(self, side: int, elements: int) -> None:
        self.constant += elements * self.low_size
        self.alone[side] += elements * (self.full_size - self.low_size)

    def _pay_full(self, side: int, cost: int) -> None:
        self.alone[side] += cost

    def _pay_low(self, side: int, cost: int) -> None:
        self.alone[side] -= cost
        self.constant += cost

    def _pay_alone(self) -> None:
        """Charge what depends on one side: for full, or with a minus for low."""
        self.constant += self.alone[FULL]
        for side, cost in enumerate(self.alone):
            if side > FULL and cost > 0:
                self.terms.pay(side, LOW, cost)
            elif side > FULL and cost < 0:
                self.terms.pay(FULL, side, -cost)
                self.constant += cost
