"""Placement ``optimal``: the cost of every placement, as an integer program.

A choice is the precision of an op; a contraction that can return its full accumulator
has a second one for its results; a weight that may be stored low has one, and so has a
storage that is written in place. Within limits on errors a contraction that may round
to 8 bits has one more: full, if it does not. The cost of a placement in the program
equals that of its plan by :func:`amprewrite.passes.cost.cost.plan_cost`.

The rules for sharing and folding casts are those of the plan's casts, see
:mod:`amprewrite.passes.placement.casts`; so are the prices. A value pays once for
all uses of a cast. A promoting kernel casts its low operands itself if one of them is
stored full, so that a full op pays for casting up only if *all* its operands are low.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite, sqrt

from amprewrite.dtypes import itemsize
from amprewrite.errors import ToleranceError
from amprewrite.ir import Op, ProgramGraph
from amprewrite.passes.analysis.classify import USER_CAST
from amprewrite.passes.analysis.context import Assignment, Placement, Situation
from amprewrite.passes.cost.cost import Fusion, counted_errors, saved_bytes, speed_cost
from amprewrite.passes.cost.cost_model import (
    CostModel,
    cast_bytes,
    is_view,
    read_elements,
)
from amprewrite.passes.placement.casts import CastKey, CastRules
from amprewrite.passes.placement.constraints import Chosen, Freedom, storable_weights
from amprewrite.passes.placement.integer_program import (
    FULL,
    LOW,
    Case,
    Flags,
    IntegerProgram,
    least_error,
    solve,
)
from amprewrite.passes.placement.promote import (
    Walk,
    carried,
    moves_weights,
    only_looked_up,
)
from amprewrite.plan import OUTPUT
from amprewrite.plan.sensitivity import EightBits, Limit, op_of
from amprewrite.plan.uses import output_sources
from amprewrite.policy import OpClass
from amprewrite.policy.model import Contract
from amprewrite.runtime.collector import collector_paused

REASONS: dict[Assignment, str] = {
    "low": "the least cost has it low",
    "full": "the least cost has it full",
    "accumulator": "the least cost has it low, handing over its accumulator",
}
"""Text of the reason for each assignment."""

GAP = 1e-3
"""Relative gap between cost and certificate at which a search within limits ends."""

NAMED = 5
"""Number of ops that a message names."""

WRITTEN = "written"
"""Region in the keys of values written by kernels; no real region has this name."""


@dataclass(frozen=True)
class Optimum:
    """The cheapest assignments, with their certificate.

    Attributes:
        chosen: The assignments.
        eight: Contractions that round to 8 bits.
        cost: Cost of the assignments, in bytes.
        bound: Lower bound on the cost of all assignments within the limits.
        nodes: Nodes that the solver searched; 0 if the relaxation was enough.
        stopped: Whether it stopped at its limit of nodes.
    """

    chosen: Chosen
    eight: frozenset[str]
    cost: int
    bound: int
    nodes: int
    stopped: bool

    @property
    def warning(self) -> str:
        """Text about a search that stopped at its limit."""
        gap = (self.cost - self.bound) / max(self.cost, 1)
        return (
            f"the search for the cheapest plan stopped at {self.nodes} nodes: a plan "
            f"may cost {gap:.2%} less; allow a larger tolerance, or raise "
            f"amprewrite.passes.placement.integer_program.NODES"
        )


@dataclass(frozen=True)
class Problem:
    """A program as choices of low or full.

    Attributes:
        graph: The graph of the program.
        freedom: The ops that can be assigned.
        program: The cost of every choice, and the roundings that it makes.
        casts: Cost and cases of each cast, by its key.
        reads: Choice of the precision in which each assignable op computes.
        makes: Choice of the precision in which it makes its results, where another.
        eight: Choice of each contraction that may round to 8 bits: full, if it does
            not; empty where the choice is free.
        saved: Bytes that each of these saves by rounding. The program charges those of
            the others, which are no bytes of the plan.
    """

    graph: ProgramGraph
    freedom: Freedom
    program: IntegerProgram
    casts: Mapping[CastKey, "SharedCast"]
    reads: Mapping[str, int]
    makes: Mapping[str, int]
    eight: Mapping[str, int]
    saved: Mapping[str, int]

    def assignments(self, full: Flags) -> dict[str, Assignment]:
        """Return the assignments of ops, from the choices that are full."""
        assignments: dict[str, Assignment] = {}
        for name, reads in self.reads.items():
            sums = name in self.makes and full[self.makes[name]]
            low: Assignment = "accumulator" if sums else "low"
            assignments[name] = "full" if full[reads] else low
        return assignments


def choose_optimal(problem: Problem, limits: Sequence[Limit] = ()) -> Optimum:
    """Return the assignments of least cost within limits, with their certificate.

    Raises:
        ToleranceError: No assignments are within the limits. It has the least error,
            and the ops that round.
    """
    binds = any(isfinite(limit.bound) for limit in limits)
    gap = GAP if binds else 0.0
    solution = solve(problem.program, limits, gap=gap)
    if solution is None:
        raise _failure(problem, limits)
    chosen = Chosen(problem.freedom, problem.assignments(solution.full), REASONS)
    eight = [op for op, choice in problem.eight.items() if not solution.full[choice]]
    missed = sum(problem.saved[op] for op in problem.saved.keys() - {*eight})
    return Optimum(
        chosen,
        frozenset(eight),
        solution.cost - missed,
        _least_bytes(problem, limits, gap) if eight else solution.bound - missed,
        solution.nodes,
        solution.stopped,
    )


def _least_bytes(problem: Problem, limits: Sequence[Limit], gap: float) -> int:
    """Return a bound on bytes alone, where 8 bits leave all errors to placement.

    The plan has the fewest bytes less those that 8 bits save, which may be other ones.
    """
    full = [(FULL, choice) for choice in problem.eight.values()]
    ties = [*problem.program.implications, *full]
    wide = replace(problem.program, implications=ties)
    solution = solve(wide, limits, gap=gap)
    assert solution is not None  # fewer roundings keep the limits, too
    return solution.bound - sum(problem.saved.values())


def _failure(problem: Problem, limits: Sequence[Limit]) -> ToleranceError:
    """Return the error for limits that no assignments keep."""
    program = problem.program
    full = least_error(program, limits)
    best = sqrt(max(program.error(full, limit) for limit in limits))
    errors: dict[str, float] = defaultdict(float)
    for key in program.roundings(full):
        errors[op_of(key, problem.graph)] += max(
            one.errors.get(key, 0.0) for one in limits
        )
    ops = sorted(filter(errors.get, errors), key=lambda op: -errors[op])
    bound = sqrt(min(limit.bound for limit in limits))
    msg = (
        f"no placement has a predicted relative error of at most {bound:.3g}; the "
        f"smallest one is {best:.3g}, by %{', %'.join(ops[:NAMED])}; allow a larger "
        f"tolerance, or give more ops class deny in the policy"
    )
    return ToleranceError(msg, best, ops)


@collector_paused()
def build_problem(
    situation: Situation,
    freedom: Freedom,
    outputs: Iterable[str],
    model: CostModel,
    *,
    keep_parameter_dtype: bool,
    formats: Mapping[str, Contract] | None = None,
) -> Problem:
    """Return the cost of every placement of a program.

    Args:
        situation: The facts before placement.
        freedom: The ops that can be assigned.
        outputs: Dtype in which each output is returned.
        model: Prices of the target.
        keep_parameter_dtype: Whether parameters keep their dtype, and casts of weights
            run.
        formats: Formats of the contractions that may round to 8 bits or not, by op.
    """
    builder = _ProblemBuilder(
        situation, freedom, model, keep_parameter_dtype=keep_parameter_dtype
    )
    return builder.build(tuple(outputs), formats or {})


class _ProblemBuilder:
    def __init__(
        self,
        situation: Situation,
        freedom: Freedom,
        model: CostModel,
        *,
        keep_parameter_dtype: bool,
    ) -> None:
        self.at, self.freedom = situation, freedom
        self.graph, self.classes = situation.graph, situation.classes
        self.values = situation.graph.values
        self.full, self.low = situation.policy.full, situation.policy.low
        self.program = IntegerProgram()
        self.low_size, self.full_size = itemsize(self.low), itemsize(self.full)
        self.casts = _CastTerms(
            situation, model, self.program, fold=not keep_parameter_dtype
        )
        self.stored, self.fusion = self.casts.stored, self.casts.fusion
        self.walk = Walk(situation, frozenset(), frozenset(), Placement())
        self.storable = storable_weights(
            situation, keep_parameter_dtype=keep_parameter_dtype
        )
        self.carried = carried(situation, {*freedom.assignable, *freedom.pinned})
        self.reads = {name: self.program.new() for name in freedom.assignable}
        self.makes = {
            name: self.program.new()
            for name in freedom.assignable
            if name in freedom.accumulators
        }
        self.written: dict[str, int] = {}
        self.weights: dict[str, int] = {}

    def build(
        self, outputs: tuple[str, ...], formats: Mapping[str, Contract]
    ) -> Problem:
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
        for name in (n for n in self.numbers if n not in self.at.weights):
            self.program.count_error(name, FULL, self.numbers[name])
        for cast in self.casts.by_key.values():
            self.program.pay_any(cast.cases, cast.cost)
        eight = {op: self.program.new() for op in formats}
        saved = {op: saved_bytes(self.graph, self.graph.op_by_name[op]) for op in eight}
        for op, choice in eight.items():
            key = EightBits(op, formats[op].forward, formats[op].scaling)
            self.program.count_error(key, FULL, choice)
            self.program.pay_full(choice, saved[op])
        return Problem(
            self.graph,
            self.freedom,
            self.program,
            self.casts.by_key,
            self.reads,
            self.makes,
            eight,
            saved,
        )

    # --- choices -------------------------------------------------------------------

    def _fixed(self, dtype: str) -> int | None:
        return {self.full: FULL, self.low: LOW}.get(dtype)

    def _tie_storages(self) -> None:
        freedom = self.freedom
        storages = {*freedom.members, *freedom.makers, *freedom.full_storages}
        for storage in sorted(storages):
            fixed = storage in freedom.full_storages
            self.written[storage] = FULL if fixed else self.program.new()
        for storage, names in freedom.members.items():
            for name in names:
                variable = self.reads.get(name, FULL)
                self.program.imply(variable, self.written[storage])
                self.program.imply(self.written[storage], variable)
        for storage, names in freedom.makers.items():
            for name in names:
                variable = self.reads.get(name, FULL)
                self.program.imply(variable, self.written[storage])

    def _tie_required(self) -> None:
        for name, makers in self.freedom.requires_low.items():
            for maker in makers if name in self.reads else ():
                made = self.makes.get(maker, self.reads.get(maker, FULL))
                self.program.imply(made, self.reads[name])

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
                weight = self.weights[root] = self.program.new() if variables else LOW
                self.casts.anchors |= {weight} - {LOW}
                for variable in sorted(variables):
                    self.program.imply(variable, weight)

    def _join(self, op: Op, own: int) -> None:
        """Keep full the weights that a move would widen beside a full one."""
        for name in dict.fromkeys(op.operands if len(op.operands) > 1 else ()):
            for root in sorted(self.carried.get(name, ())):
                weight = self.weights.get(root, LOW)
                if weight not in (own, LOW):
                    self.program.imply(own, weight)

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
        """Return the choice of the precision in which ``op`` computes."""
        if op.name in self.freedom.moved:
            variables = {self.numbers[n] for n in self.walk.strong(op)}
            variable = self.program.either(variables)
            if not self.casts.anchors.isdisjoint(variables):
                self.casts.anchors.add(variable)
            self._join(op, variable)
            return variable
        lowered = self.low in self.at.reads(op)
        return self.reads.get(op.name, LOW if lowered else FULL)

    def _wanted(self, op: Op, index: int) -> int | None:
        """Return the choice of a full operand as read; None for as stored."""
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
            if index == op.operands.index(name):
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
                self.program.constant += count * itemsize(read)
            else:
                self.casts.size(read, count)
        if self.fusion.wants(op, index):
            self.casts.keep(name, read)

    def _keep_full(self, op: Op, name: str, *, beside: bool) -> None:
        """Keep full the weights that are read in their stored dtype, if it is full."""
        if not beside or op.name not in self.reads:
            return
        for root in sorted(self.at.weights.get(name, ())):
            if root in self.weights:
                self.program.imply(self.stored[name], self.weights[root])

    def _seen(self, stored: int, wanted: int | None, *, beside: bool) -> int:
        """Return the choice of an operand as seen by an op that may not cast it."""
        if wanted is None:
            return stored
        return self.program.either((wanted, stored)) if beside else wanted

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
            self.program.pay_full(own, full)
            self.program.pay_low(own, low)

    def _read_error(self, op: Op, name: str, seen: int) -> None:
        if name in counted_errors(self.at, op)[1]:
            stored = FULL if name in self.at.weights else self.numbers[name]
            self.program.count_error((name, op.name), stored, seen)

    # --- results of an op ---------------------------------------------------------

    def _make(self, op: Op, own: int, *, view: bool) -> None:
        variable = self._made(op, own)
        filled = self.classes[op.name].op_class is OpClass.KEEP
        for name in op.results:
            count = op.trips * self.values[name].elements
            memory = not (view or self.fusion.is_versioned(name))
            if self.values[name].dtype != self.full:
                if memory:
                    self.program.constant += count * itemsize(self.values[name].dtype)
                continue
            made = self.weights.get(name, variable) if filled else variable
            storage = self.graph.storage(name)
            stored = FULL if name in self.at.returned.values else made
            self.stored[name] = self.written.get(storage, stored)
            self.numbers[name] = made if stored != made else self.stored[name]
            if memory and self.fusion.hands_sums(op):
                self._hand_sums(op, made, count)
            elif memory:
                self.casts.size(self._made_in(op, name, made), count)
            members = self.freedom.members.get(storage, ())
            if self.stored[name] != made and op.name not in members:
                self.casts.on_the_spot(op, name, made)

    def _hand_sums(self, op: Op, made: int, count: int) -> None:
        self.casts.size(FULL, count)
        if self.fusion.is_rounded_alone(op):
            self.program.pay_low(made, count * (self.low_size + self.full_size))

    def _made_in(self, op: Op, name: str, made: int) -> int:
        """Return the choice of a result; that of its storage for in-place writes."""
        if not op.mutates:
            return made
        storage = self.graph.storage(name)
        targets = {self.graph.storage(op.operands[i]) for i in op.mutates}
        return self.stored[name] if storage in targets else made

    def _made(self, op: Op, own: int) -> int:
        if op.name in self.makes:
            self.program.imply(self.reads[op.name], self.makes[op.name])
            return self.makes[op.name]
        if self._follows(op):
            roots = self.at.weights[op.results[0]]
            known = [self.weights[root] for root in roots if root in self.weights]
            traced = op.dtype_argument == self.full and len(op.results) == 1
            return (
                self.program.either(known)
                if traced and len(known) == len(roots)
                else FULL
            )
        return own


@dataclass
class SharedCast:
    """A cast that several uses share, and when it is paid.

    Attributes:
        cost: Cost of the cast.
        up: Whether it widens.
        cases: Where it is needed.
    """

    cost: int
    up: bool
    cases: list[Case] = field(default_factory=list[Case])


class _CastTerms:
    """All casts of a program, entered in program order.

    Attributes:
        by_key: The casts.
        stored: Choice of the precision in which each full value is stored.
        anchors: Choices that are full where an op that reads them is: weights.
    """

    def __init__(
        self,
        situation: Situation,
        model: CostModel,
        program: IntegerProgram,
        *,
        fold: bool,
    ) -> None:
        self.model, self.program = model, program
        self.rules = CastRules(situation, fold=fold)
        self.graph, self.values = situation.graph, situation.graph.values
        self.full, self.low = situation.policy.full, situation.policy.low
        self.fusion = Fusion(self.graph, situation.classes, model)
        self.low_size, self.full_size = itemsize(self.low), itemsize(self.full)
        self.by_key, self.stored = dict[CastKey, SharedCast](), dict[str, int]()
        self.anchors = set[int]()
        self._known = set[tuple[str, str]]()

    def size(self, choice: int, elements: int) -> None:
        """Charge the bytes of ``elements`` in the dtype of ``choice``."""
        self.program.constant += elements * self.low_size
        self.program.pay_full(choice, elements * (self.full_size - self.low_size))

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
            wanted: Choice of the precision in which it is read.
            only_up: Whether a low op accepts the operand in full.
        """
        name = op.operands[index]
        stored = self.stored[name]
        if stored == wanted or not self._is_paid(op, index):
            return
        if wanted != FULL and stored != LOW and not only_up:
            cast = self._cast(op, index, name, up=False)
            cast.cases.append((stored, (wanted,)))
        if wanted != LOW and stored != FULL and not self.rules.promotes(op):
            cast = self._cast(op, index, name, up=True)
            cast.cases.append((wanted, (stored,)))

    def read_as(self, op: Op, index: int, dtype: str) -> None:
        """Charge the cast of an operand to a known dtype."""
        if self._is_paid(op, index):
            self._cast_as(op, index, op.operands[index], dtype)

    def keep(self, name: str, wanted: int | str) -> None:
        """Charge the write of a value, by its generated kernel, for one use.

        Args:
            name: The value; a kernel writes it once in each wanted dtype.
            wanted: Choice of the precision in which it is read from memory, or its
                dtype, if that is neither low nor full or the value has no choice of
                its own.
        """
        origin = self.fusion.origin(name)
        if isinstance(wanted, str):
            if (origin, wanted) not in self._known:
                self._known.add((origin, wanted))
                self.program.constant += self.fusion.written(origin, itemsize(wanted))
            return
        for dtype, up in ((self.low, False), (self.full, True)):
            key = CastKey(origin, dtype, WRITTEN, 0, False, 0)
            if key not in self.by_key:
                cost = self.fusion.written(origin, itemsize(dtype))
                self.by_key[key] = SharedCast(cost, up)
            case = (wanted, (LOW,)) if up else (FULL, (wanted,))
            self.by_key[key].cases.append(case)

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
            stored, up = self.stored[name], variable == FULL
            case = (FULL, (stored,)) if up else (stored, (LOW,))
            self._cast(None, 0, name, up=up).cases.append(case)

    def on_the_spot(self, op: Op, name: str, made: int) -> None:
        """Charge the cast of a low result of ``op`` into a full storage."""
        readers = [user for user, _ in self.rules.made_uses(name)]
        if readers and not self.fusion.absorbs(name, readers):
            key = self.rules.made_key(op, name, self.full)
            cost = self._price(key, self.low_size, self.full_size)
            self.program.pay(self.stored[name], made, cost)

    def _cast(self, op: Op | None, index: int, name: str, *, up: bool) -> SharedCast:
        key = self.rules.key(op, index, name, self.full if up else self.low)
        if key not in self.by_key:
            cost = self._price(key, self.low_size, self.full_size)
            self.by_key[key] = SharedCast(cost, up)
        return self.by_key[key]

    def _cast_as(self, op: Op | None, index: int, name: str, dtype: str) -> None:
        """Charge a cast with a dtype other than low and full, or with both known."""
        traced = self.values[name].dtype
        if name not in self.stored and dtype == traced:
            return
        key = self.rules.key(op, index, name, dtype)
        if key in self.by_key:
            return
        self.by_key[key] = SharedCast(0, up=True)
        if name in self.stored:
            self.size(self.stored[name], key.trips * self.values[name].elements)
            size = 0
        else:
            size = itemsize(traced)
        self.program.constant += self._price(key, size, itemsize(dtype))

    def promote(self, op: Op, own: int, *, anchored: bool) -> None:
        """Charge the widening casts of an op with a promoting kernel.

        Args:
            op: The op.
            own: Choice of the op.
            anchored: Whether a weight that it reads is full if the op is.
        """
        shaped = list(dict.fromkeys(self.rules.promoted(op)))
        stored = [self.stored[name] for name in shaped]
        if FULL in stored or (anchored and not self.anchors.isdisjoint(stored)):
            return
        for name in shaped:
            index = op.operands.index(name)
            if self._is_paid(op, index):
                cast = self._cast(op, index, name, up=True)
                cast.cases.append((own, tuple(sorted({*stored}))))
