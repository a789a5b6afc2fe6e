"""The cost of every placement of a program, as terms of a minimum cut.

A variable is the precision of an op; a contraction that can return its full accumulator
has a second one for its results; a weight that may be stored low has one, and so has a
storage that is written in place. The cost of a placement by the terms equals that of
its plan by :func:`amprewrite.passes.cost.cost.plan_cost`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from amprewrite.dtypes import itemsize
from amprewrite.ir import Op
from amprewrite.passes.analysis.classify import USER_CAST
from amprewrite.passes.analysis.context import Assignment, Placement, Situation
from amprewrite.passes.cost.cost import Objective, counted_errors, speed_cost
from amprewrite.passes.cost.moved_bytes import is_view, read_elements
from amprewrite.passes.mincut.cast_terms import CastTerms
from amprewrite.passes.mincut.max_flow import FULL, LOW, Flags, Terms
from amprewrite.passes.mincut.shared_casts import Groups
from amprewrite.passes.mincut.unary_costs import Ledger
from amprewrite.passes.placement.constraints import Freedom, storable_weights
from amprewrite.passes.placement.walk import Walk
from amprewrite.passes.placement.weight_storage import (
    carried,
    moves_weights,
    only_looked_up,
)
from amprewrite.plan.uses import output_sources
from amprewrite.policy import OpClass
from amprewrite.runtime.collector import collector_paused


@dataclass(frozen=True)
class Problem:
    """A program as a minimum cut problem.

    Attributes:
        freedom: The ops that can be assigned.
        terms: Terms with a cost that is the same in every relaxation.
        groups: The casts, and the ops that promote for free.
        constant: Cost common to all placements.
        variables: Number of variables, with the two constants.
        reads: Variable of the precision in which each assignable op computes.
        makes: Variable of the precision in which it makes its results, where another.
    """

    freedom: Freedom
    terms: Terms
    groups: Groups
    constant: int
    variables: int
    reads: Mapping[str, int]
    makes: Mapping[str, int]

    def assignments(self, full: Flags) -> dict[str, Assignment]:
        """Return the assignments of ops, from the variables that are full."""
        found: dict[str, Assignment] = {}
        for name, reads in self.reads.items():
            sums = name in self.makes and full[self.makes[name]]
            found[name] = "full" if full[reads] else "accumulator" if sums else "low"
        return found


@collector_paused()
def build_problem(
    situation: Situation,
    freedom: Freedom,
    outputs: Iterable[str],
    objective: Objective,
    *,
    keep_parameter_dtype: bool,
) -> Problem:
    """Return the cost of every placement of a program.

    Args:
        situation: The facts before placement.
        freedom: The ops that can be assigned.
        outputs: Dtype in which each output is returned.
        objective: Prices and error costs.
        keep_parameter_dtype: Whether parameters keep their dtype, and casts of weights
            run.
    """
    builder = _Builder(
        situation, freedom, objective, keep_parameter_dtype=keep_parameter_dtype
    )
    return builder.build(tuple(outputs))


class _Builder:
    def __init__(
        self,
        situation: Situation,
        freedom: Freedom,
        objective: Objective,
        *,
        keep_parameter_dtype: bool,
    ) -> None:
        self.at, self.freedom, self.objective = situation, freedom, objective
        self.graph, self.classes = situation.graph, situation.classes
        self.values = situation.graph.values
        self.full, self.low = situation.policy.full, situation.policy.low
        self.ledger = Ledger(itemsize(self.low), itemsize(self.full))
        self.casts = CastTerms(
            situation, objective.model, self.ledger, fold=not keep_parameter_dtype
        )
        self.stored, self.fusion = self.casts.stored, self.casts.fusion
        self.walk = Walk(situation, frozenset(), frozenset(), Placement())
        self.storable = storable_weights(
            situation, keep_parameter_dtype=keep_parameter_dtype
        )
        self.carried = carried(situation, {*freedom.assignable, *freedom.pinned})
        self.reads = {name: self.ledger.new() for name in freedom.assignable}
        self.makes = {
            name: self.ledger.new()
            for name in freedom.assignable
            if name in freedom.accumulators
        }
        self.written: dict[str, int] = {}
        self.weights: dict[str, int] = {}

    def build(self, outputs: tuple[str, ...]) -> Problem:
        self._tie_storages()
        self._tie_required()
        self._find_weights()
        for value in self.graph.inputs():
            if value.dtype == self.full:
                self.stored[value.name] = self.weights.get(value.name, FULL)
        self.numbers = dict(self.stored)  # a returned value as it is made
        for op in self.graph.ops:
            own = self._variable(op)
            view = is_view(self.graph, op)
            self._read(op, own, view=view)
            self.casts.rules.write(op)
            self._make(op, own, view=view)
        pairs = zip(output_sources(self.graph), outputs, strict=True)
        for name, dtype in dict.fromkeys(pairs):
            self.casts.hand_back(name, dtype)
        if self.objective.errors:
            for name in (n for n in self.numbers if n not in self.at.weights):
                self.ledger.pay_low(self.numbers[name], self.objective.error(name))
        return self._settle()

    def _settle(self) -> Problem:
        ledger, groups = self.ledger, self.casts.groups
        ledger.add_terms()
        count = groups.add_to(ledger.terms, ledger.variables)
        return Problem(
            self.freedom,
            ledger.terms,
            groups,
            ledger.constant,
            count,
            self.reads,
            self.makes,
        )

    # --- variables -----------------------------------------------------------------

    def _fixed(self, dtype: str) -> int | None:
        return {self.full: FULL, self.low: LOW}.get(dtype)

    def _tie_storages(self) -> None:
        freedom = self.freedom
        storages = {*freedom.members, *freedom.makers, *freedom.full_storages}
        for storage in sorted(storages):
            fixed = storage in freedom.full_storages
            self.written[storage] = FULL if fixed else self.ledger.new()
        for storage, names in freedom.members.items():
            for name in names:
                variable = self.reads.get(name, FULL)
                self.ledger.terms.imply(variable, self.written[storage])
                self.ledger.terms.imply(self.written[storage], variable)
        for storage, names in freedom.makers.items():
            for name in names:
                variable = self.reads.get(name, FULL)
                self.ledger.terms.imply(variable, self.written[storage])

    def _tie_required(self) -> None:
        for name, makers in self.freedom.requires_low.items():
            for maker in makers if name in self.reads else ():
                made = self.makes.get(maker, self.reads.get(maker, FULL))
                self.ledger.terms.imply(made, self.reads[name])

    def _find_weights(self) -> None:
        """Add variables for weights that ops may read low: full if one reads full.

        The converse need not be forced: a weight that is stored full costs more.
        """
        if not self.storable:
            return
        readers, casting = self._weight_readers()
        if self.at.policy.lookups == "low":
            casting |= only_looked_up(self.at) & self.storable
        for root in sorted(casting):
            variables = readers.get(root, set[int]())
            if FULL not in variables:
                weight = self.weights[root] = self.ledger.new() if variables else LOW
                self.casts.anchors |= {weight} - {LOW}
                for variable in sorted(variables):
                    self.ledger.terms.imply(variable, weight)

    def _join(self, op: Op, own: int) -> None:
        """Keep full the weights that a move would widen beside a full one."""
        for name in dict.fromkeys(op.operands if len(op.operands) > 1 else ()):
            for root in sorted(self.carried.get(name, ())):
                weight = self.weights.get(root, LOW)
                if weight not in (own, LOW):
                    self.ledger.terms.imply(own, weight)

    def _weight_readers(self) -> tuple[dict[str, set[int]], set[str]]:
        """Return the variables that read each weight, and those cast by low ops."""
        readers: dict[str, set[int]] = {}
        casting: set[str] = set()
        for op in self.graph.ops:
            if op.name in self.freedom.moved or self._follows(op):
                continue
            for index, name in enumerate(op.operands):
                if name not in self.at.weights:
                    continue
                roots = self.at.weights[name] & self.storable
                variable = self._wanted(op, index) if roots else None
                if variable is not None:
                    casting |= frozenset[str]() if self._is_beside(op, index) else roots
                    for root in roots:
                        readers.setdefault(root, set()).add(variable)
        return readers, casting

    def _follows(self, op: Op) -> bool:
        """Return whether a user's cast moves a weight."""
        return op.canonical == USER_CAST and not op.fence and moves_weights(self.at, op)

    def _variable(self, op: Op) -> int:
        """Return the variable of the precision in which ``op`` computes."""
        if op.name in self.freedom.moved:
            variables = {self.numbers[n] for n in self.walk.strong(op)}
            variable = self.ledger.either(variables)
            if not self.casts.anchors.isdisjoint(variables):
                self.casts.anchors.add(variable)
            self._join(op, variable)
            return variable
        lowered = self.low in self.at.reads(op)
        return self.reads.get(op.name, LOW if lowered else FULL)

    def _wanted(self, op: Op, index: int) -> int | None:
        """Return the variable of a full operand as read; None for as stored."""
        if op.reads:
            return self._fixed(self.at.reads(op)[index])
        if index in op.mutates or (op.canonical == USER_CAST and not op.fence):
            return None
        keeps = self.classes[op.name].op_class is OpClass.KEEP
        if keeps and op.operand_rule == "any" and not op.fence:
            return None
        return self.reads.get(op.name, FULL)

    # --- operands of an op --------------------------------------------------------

    def _read(self, op: Op, own: int, *, view: bool) -> None:
        moved, inside = op.name in self.freedom.moved, op.name in self.fusion.kernels
        for index, name in enumerate(op.operands):
            stored = self.stored.get(name)
            if stored is None:
                self._read_other(op, index, view=view)
                continue
            wanted = own if moved else self._wanted(op, index)
            other = self.at.reads(op)[index] if op.reads else ""
            beside = op.operand_rule == "lead" and self._is_beside(op, index)
            seen = self._seen(stored, wanted, beside=beside)
            if inside:
                read = FULL if self.fusion.is_sum(name) else stored
            else:
                fixed = wanted is None and other not in ("", self.full, self.low)
                read = other if fixed else seen
            self._read_memory(op, index, read, view=view)
            if self.objective.errors and index == op.operands.index(name):
                self._read_error(op, name, seen)
            if not self.casts.rules.may_cast(op, index):
                continue
            if wanted is not None:
                self.casts.read(op, index, wanted, only_up=beside)
                self._keep_full(op, name, beside=beside)
            elif other:
                self.casts.read_as(op, index, other)
        if self.casts.rules.promotes(op):
            anchored = op.name not in self.freedom.moved
            self.casts.promote(op, own, anchored=anchored)
        self._pay_op(op, own)

    def _read_memory(self, op: Op, index: int, read: int | str, *, view: bool) -> None:
        """Charge the bytes that an op reads, and those written for it."""
        name = op.operands[index]
        if not view and self.fusion.is_read(op, index):
            count = op.trips * read_elements(self.graph, op, index)
            if isinstance(read, str):
                self.ledger.constant += count * itemsize(read)
            else:
                self.ledger.size(read, count)
        if self.fusion.wants(op, index):
            self.casts.keep(name, read)

    def _keep_full(self, op: Op, name: str, *, beside: bool) -> None:
        """Keep full the weights that are read in their stored dtype, if it is full."""
        if not beside or op.name not in self.reads:
            return
        for root in sorted(self.at.weights.get(name, ())):
            if root in self.weights:
                self.ledger.terms.imply(self.stored[name], self.weights[root])

    def _seen(self, stored: int, wanted: int | None, *, beside: bool) -> int:
        """Return the variable of an operand as seen by an op that may not cast it."""
        if wanted is None:
            return stored
        return self.ledger.either((wanted, stored)) if beside else wanted

    def _is_beside(self, op: Op, index: int) -> bool:
        """Return whether an operand may be wider than the low first one."""
        placed = op.name in self.reads or op.name in self.freedom.moved
        if op.operand_rule != "lead" or not placed:
            return False
        return any(self.graph.is_dtype(name, self.full) for name in op.operands[:index])

    def _read_other(self, op: Op, index: int, *, view: bool) -> None:
        """Charge an operand of another dtype than full, as traced or as promoted."""
        name = op.operands[index]
        dtype = self.at.reads(op)[index] if op.reads else self.values[name].dtype
        inside = op.name in self.fusion.kernels
        read = self.values[name].dtype if inside else dtype
        self._read_memory(op, index, read, view=view)
        if dtype != self.values[name].dtype:
            self.casts.read_as(op, index, dtype)

    def _pay_op(self, op: Op, own: int) -> None:
        if not op.reads or self.low in self.at.reads(op):
            full, low = speed_cost(self.at, op, self.fusion)
            self.ledger.pay_full(own, full)
            self.ledger.pay_low(own, low)

    def _read_error(self, op: Op, name: str, seen: int) -> None:
        if name not in counted_errors(self.at, op)[1]:
            return
        error = self.objective.error((name, op.name))
        if name in self.at.weights:
            self.ledger.pay_low(seen, error)
        elif self.numbers[name] != seen:
            self.ledger.terms.pay(self.numbers[name], seen, error)

    # --- results of an op ---------------------------------------------------------

    def _make(self, op: Op, own: int, *, view: bool) -> None:
        variable = self._made(op, own)
        filled = self.classes[op.name].op_class is OpClass.KEEP
        for name in op.results:
            count = op.trips * self.values[name].elements
            memory = not (view or self.fusion.is_versioned(name))
            if self.values[name].dtype != self.full:
                if memory:
                    self.ledger.constant += count * itemsize(self.values[name].dtype)
                continue
            made = self.weights.get(name, variable) if filled else variable
            storage = self.graph.storage(name)
            stored = FULL if name in self.at.returned.values else made
            self.stored[name] = self.written.get(storage, stored)
            self.numbers[name] = made if stored != made else self.stored[name]
            if memory and self.fusion.hands_sums(op):
                self._hand_sums(op, made, count)
            elif memory:
                self.ledger.size(self._made_in(op, name, made), count)
            members = self.freedom.members.get(storage, ())
            if self.stored[name] != made and op.name not in members:
                self.casts.on_the_spot(op, name, made)

    def _hand_sums(self, op: Op, made: int, count: int) -> None:
        self.ledger.size(FULL, count)
        if self.fusion.is_rounded_alone(op):
            sizes = self.ledger.low_size + self.ledger.full_size
            self.ledger.pay_low(made, count * sizes)

    def _made_in(self, op: Op, name: str, made: int) -> int:
        """Return the variable of a result; that of its storage for in-place writes."""
        if not op.mutates:
            return made
        storage = self.graph.storage(name)
        targets = {self.graph.storage(op.operands[i]) for i in op.mutates}
        return self.stored[name] if storage in targets else made

    def _made(self, op: Op, own: int) -> int:
        if op.name in self.makes:
            self.ledger.terms.imply(self.reads[op.name], self.makes[op.name])
            return self.makes[op.name]
        if self._follows(op):
            roots = self.at.weights[op.results[0]]
            known = [self.weights[root] for root in roots if root in self.weights]
            traced = op.dtype_argument == self.full and len(op.results) == 1
            return (
                self.ledger.either(known)
                if traced and len(known) == len(roots)
                else FULL
            )
        return own
