"""Consistency of a plan with itself and its program, which an edit may break.

Plans made by the passes satisfy all of this; a property test checks it on random
programs. Writers rely on it, so that a plan edited by hand is applied exactly, or
refused.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator

from amprewrite.errors import PlanMismatchError
from amprewrite.ir import REGION_BOUNDARIES, Op, ProgramGraph
from amprewrite.ir.graph import factor_indices
from amprewrite.ops import Group
from amprewrite.ops.repeatable import repeats
from amprewrite.plan.facts import has_kernel
from amprewrite.plan.file import mistakes_head
from amprewrite.plan.hardware import OPERAND
from amprewrite.plan.model import OUTPUT, Cast, Decision, Plan
from amprewrite.plan.uses import is_at_definition, output_sources
from amprewrite.plan.validation.fingerprint import fingerprint, first_difference
from amprewrite.policy import OpClass
from amprewrite.policy.model import Contract

HINT = (
    "a plan is applied as it is; to have a change thought through, give a rule in "
    "overrides= to amprewrite.inspect"
)


def check_plan(graph: ProgramGraph, plan: Plan) -> None:
    """Check that ``plan`` can be applied to ``graph`` exactly.

    Raises:
        PlanMismatchError: Lists the mistakes, each with its place.
    """
    if mistakes := list(dict.fromkeys(_Checker(graph, plan).mistakes())):
        raise PlanMismatchError(
            f"plan does not agree with itself or its program: "
            f"{mistakes_head(mistakes)}; {HINT}",
            mistakes,
        )


class _Checker:
    """Checker that follows every value from its definition to its uses."""

    def __init__(self, graph: ProgramGraph, plan: Plan) -> None:
        self.graph, self.plan = graph, plan
        self.by_use: dict[tuple[str, int], list[tuple[int, Cast]]] = defaultdict(list)
        for number, cast in enumerate(plan.casts):
            for use in cast.uses:
                self.by_use[use].append((number, cast))
        self.sources = output_sources(graph)
        self.made = {value.name: value.dtype for value in graph.inputs()}

    def mistakes(self) -> Iterator[str]:
        """Yield every mistake; the later checks rely on the earlier ones."""
        for stage in (self._decisions, self._uses, self._dtypes, self._totals):
            found = list(stage())
            yield from found
            if found:
                return

    def _decisions(self) -> Iterator[str]:
        for op, decision in zip(self.graph.ops, self.plan.decisions, strict=True):
            for problem in decision_mistakes(self.graph, op, decision, self.plan):
                yield f"decision of {op.name}: {problem}"
            self.made.update(zip(op.results, decision.results, strict=False))
        yield from self._outputs()
        yield from recompute_mistakes(self.graph, self.plan)

    def _outputs(self) -> Iterator[str]:
        want = len(self.graph.outputs)
        if len(self.plan.outputs) != want:
            yield f"outputs: {len(self.plan.outputs)} dtypes for {want} outputs"

    def _uses(self) -> Iterator[str]:
        for number, cast in enumerate(self.plan.casts):
            where = f"casts[{number}] of %{cast.value}"
            if cast.value not in self.graph.values:
                yield f"{where}: the program has no such value"
                continue
            for op, index in cast.uses:
                if problem := self._use(cast, op, index):
                    yield f"{where}: {problem}"
            if not cast.uses:
                yield f"{where}: has no uses"
            if len(set(cast.uses)) != len(cast.uses):
                yield f"{where}: names a use twice"
            for problem in (*self._place(cast), *self._folding(cast)):
                yield f"{where}: {problem}"
        yield from self._stored()

    def _use(self, cast: Cast, op: str, index: int) -> str:
        if op == OUTPUT:
            names = self.sources
        elif op in self.graph.op_by_name:
            names = self.graph.op_by_name[op].operands
        else:
            return f"the program has no op {op!r}"
        if index >= len(names):
            return f"{op} has {len(names)} operands, no operand {index}"
        if names[index] != cast.value:
            return f"operand {index} of {op} is %{names[index]}"
        return ""

    def _place(self, cast: Cast) -> Iterator[str]:
        """Yield the fields of a cast that contradict its program."""
        producer = self.graph.producer.get(cast.value)
        if cast.producer != (producer.name if producer else ""):
            yield f"producer is {cast.producer!r}, not the op that makes it"
        rank = len(self.graph.values[cast.value].shape)
        if len(cast.shape) != rank:
            yield f"shape has {len(cast.shape)} extents, the value has {rank}"
        readers = [self.graph.op_by_name.get(op) for op in cast.consumers]
        at = {(op.around, op.trips) if op else ("", 1) for op in readers}
        at |= {(producer.region, producer.trips)} if producer else set()
        if (cast.region, cast.trips) not in at and cast.folding != "storage":
            yield f"no reader is in region {cast.region!r} with {cast.trips} trips"
        if cast.folded != bool(cast.folding):
            yield f"folded is {cast.folded} with folding {cast.folding!r}"
        if cast.from_dtype == cast.to_dtype:
            yield f"from {cast.from_dtype} to itself"
        if cast.saturate and (cast.folded or cast.to_dtype != self.plan.low):
            yield "saturate is only for casts to the low dtype that run"
        if cast.folded and cast.bytes:
            yield f"is folded and moves {cast.bytes} bytes"

    def _folding(self, cast: Cast) -> Iterator[str]:
        """Yield the reasons why a cast cannot be folded as it says."""
        if cast.folding in ("storage", "copy"):
            if self.plan.training:
                yield f"folding {cast.folding!r} while the parameters are trained"
            if not self._is_static(cast.value):
                yield f"folding {cast.folding!r} of a value that is no weight"
        if cast.folding == "storage":
            readers = {(op.name, i) for op, i in self.graph.users[cast.value]}
            if cast.value in self.graph.producer or {*cast.uses} != readers:
                yield "folding 'storage' is for a weight, with all its readers"
        for name, index in cast.uses if cast.folding in ("kernel", "dtype") else ():
            op = self.graph.op_by_name.get(name)
            decision = self.plan.by_op.get(name)
            if op is None or decision is None:
                yield f"folding {cast.folding!r} into an output"
            elif not self._kernel_casts(cast, op, decision, index):
                yield f"{name} cannot do it itself (folding {cast.folding!r})"

    def _kernel_casts(self, cast: Cast, op: Op, decision: Decision, index: int) -> bool:
        if cast.folding == "dtype":
            told = decision.op_class in (OpClass.DENY, OpClass.ACCUMULATE)
            return op.has_dtype_argument and told and index == 0
        return op.operand_rule in ("any", "promote")

    def _is_static(self, name: str) -> bool:
        """Return whether a value depends on weights alone, and is never written."""
        pending, seen = [name], {name}
        while pending:
            value = self.graph.values[pending.pop()]
            if value.kind == "input" or value.alias in self.graph.written:
                return False
            maker = self.graph.producer.get(value.name)
            fresh = {*maker.operands} - seen if maker else set[str]()
            seen |= fresh
            pending.extend(fresh)
        return True

    def _stored(self) -> Iterator[str]:
        """Yield the differences between ``storage`` and the casts folded into it."""
        by_casts = Counter(
            (c.value, c.to_dtype) for c in self.plan.casts if c.folding == "storage"
        )
        listed = Counter(self.plan.storage)
        for value, dtype in listed - by_casts:
            yield f"storage of %{value} as {dtype}: has no cast of folding 'storage'"
        for value, dtype in by_casts - listed:
            yield f"storage: lacks %{value} as {dtype}, which a cast is folded into"

    def _dtypes(self) -> Iterator[str]:
        """Yield the operands that arrive in another dtype than the one read."""
        for op, decision in zip(self.graph.ops, self.plan.decisions, strict=True):
            for index, (name, wanted) in enumerate(
                zip(op.operands, decision.operands, strict=True)
            ):
                yield from self._arrives(op.name, index, name, wanted)
        for index, wanted in enumerate(self.plan.outputs):
            name, source = self.graph.outputs[index], self.sources[index]
            viewed = (OUTPUT, index) in self.by_use or self.made[name] != wanted
            yield from self._arrives(OUTPUT, index, source if viewed else name, wanted)
        yield from self._versions()

    def _arrives(self, op: str, index: int, name: str, wanted: str) -> Iterator[str]:
        dtype = self.made[name]
        for number, cast in self.by_use.get((op, index), ()):
            if cast.from_dtype != dtype:
                yield (
                    f"casts[{number}] of %{name}: starts from {cast.from_dtype} at "
                    f"{op}, where it is {dtype}"
                )
                return
            dtype = cast.to_dtype
        if dtype != wanted:
            yield f"{op}: reads operand {index}, %{name}, in {wanted}; it is {dtype}"

    def _versions(self) -> Iterator[str]:
        """Yield casts that serve readers before and after a write to their value."""
        last = len(self.graph.ops)
        place = self.graph.position
        for number, cast in enumerate(self.plan.casts):
            if cast.folded or is_at_definition(self.graph, cast, self.sources):
                continue
            at = [place.get(op, last) for op, _ in cast.uses]
            storage = self.graph.storage(cast.value)
            for op in self.graph.ops[min(at) : max(at)]:
                if storage in (self.graph.storage(op.operands[i]) for i in op.mutates):
                    yield (
                        f"casts[{number}] of %{cast.value}: {op.name} writes to it "
                        f"between its readers"
                    )

    def _totals(self) -> Iterator[str]:
        run = self.plan.runtime_casts
        cost, moved = self.plan.cost, sum(cast.bytes for cast in run)
        if (cost.casts, cost.cast_bytes) != (len(run), moved):
            yield (
                f"cost: says {cost.casts} casts of {cost.cast_bytes} bytes, and there "
                f"are {len(run)} of {moved}"
            )


# Consistency of one decision: class, precision, dtypes and accumulators.


def decision_mistakes(
    graph: ProgramGraph, op: Op, decision: Decision, plan: Plan
) -> Iterator[str]:
    """Yield the mistakes in the decision about ``op``."""
    counts = len(decision.operands), len(decision.results)
    if counts != (len(op.operands), len(op.results)):
        yield f"has dtypes for {counts[0]} operands and {counts[1]} results"
        return
    if decision.canonical != op.canonical:
        yield f"canonical is {decision.canonical!r}, and the op is {op.canonical}"
    names = (*op.operands, *op.results)
    dtypes = (*decision.operands, *decision.results)
    for name, dtype in zip(names, dtypes, strict=True):
        traced = graph.values[name].dtype
        if dtype != traced and not _may_become(traced, dtype, op, plan):
            yield f"%{name} of dtype {traced} cannot be {dtype!r}"
    yield from _precision(graph, op, decision, plan)
    yield from _contraction(op, decision, plan)
    yield from _formats(graph, op, decision, plan)


def _may_become(traced: str, dtype: str, op: Op, plan: Plan) -> bool:
    """Return whether a value may be stored in another dtype than it was traced with."""
    if op.reads:
        return dtype in op.reads
    pair = (plan.low, plan.full)
    return bool(plan.low) and traced in pair and dtype in pair


def _precision(
    graph: ProgramGraph, op: Op, decision: Decision, plan: Plan
) -> Iterator[str]:
    """Yield contradictions between class, precision, and operand and result dtypes."""
    precision, op_class = decision.precision, decision.op_class
    if op.fence and op_class != OpClass.KEEP:
        yield f"is {op_class}, and must not be touched: {op.fence}"
    if op.reads:
        yield from _promoted(op, decision)
    elif op_class == OpClass.KEEP or not plan.low:
        known = {*decision.operands, *decision.results}
        if precision not in known and (known or precision):
            yield f"is keep and computes in {precision!r}, which it has not"
    elif precision not in (plan.low, plan.full):
        yield f"computes in {precision!r}; want {plan.low} or {plan.full}"
    elif op_class == OpClass.DENY and precision != plan.full:
        yield f"is deny and computes in {precision}; want {plan.full}"
    elif op.canonical == "cast" or op.canonical in REGION_BOUNDARIES:
        if decision.results and precision != decision.results[0]:
            yield f"makes {decision.results[0]} and computes in {precision}"
    else:
        yield from _read(graph, op, decision, plan)
        yield from _made(graph, op, decision, plan)


def _promoted(op: Op, decision: Decision) -> Iterator[str]:
    if decision.operands != op.reads:
        found, want = ", ".join(decision.operands), ", ".join(op.reads)
        yield f"reads {found}, and its operands promote to {want}"
    if decision.precision not in op.reads:
        yield f"computes in {decision.precision!r}, which it does not read"


def _read(graph: ProgramGraph, op: Op, decision: Decision, plan: Plan) -> Iterator[str]:
    """Yield operands of another dtype than the computing dtype of the op."""
    rows = enumerate(zip(op.operands, decision.operands, strict=True))
    placed = [(i, dtype) for i, (n, dtype) in rows if graph.is_dtype(n, plan.full)]
    read = [dtype for index, dtype in placed if index not in op.mutates]
    wrong = dict.fromkeys(dtype for dtype in read if dtype != decision.precision)
    first = next((dtype for _, dtype in placed), "")  # it leads where it is written too
    leads = op.operand_rule == "lead" and first == decision.precision
    if wrong and not leads:
        yield f"computes in {decision.precision} and reads {', '.join(wrong)}"


def _made(graph: ProgramGraph, op: Op, decision: Decision, plan: Plan) -> Iterator[str]:
    """Yield results of a dtype that the op cannot make."""
    precision = decision.precision
    pairs = zip(op.results, decision.results, strict=True)
    made = dict.fromkeys(
        dtype
        for name, dtype in pairs
        if graph.is_dtype(name, plan.full) and dtype != precision
    )
    sums = op.accumulates and precision == plan.low
    rounded = precision == plan.full and decision.op_class == OpClass.PROMOTE
    allowed = sums or rounded or op.mutates or op.traits.group == Group.LOOKUP
    if made and not allowed:
        yield f"computes in {precision} and makes {', '.join(made)}"


def _formats(
    graph: ProgramGraph, op: Op, decision: Decision, plan: Plan
) -> Iterator[str]:
    """Yield 8-bit formats that the op cannot have."""
    if not decision.quantises:
        if decision.scaling:
            yield f"has scaling {decision.scaling!r}, and no 8-bit format"
        if decision.kernel:
            yield f"has kernel {decision.kernel!r}, and no 8-bit format"
        return
    indices = factor_indices(op)
    if not indices or op.fence or op.mutates:
        yield "has an 8-bit format, and is no contraction that may be touched"
    elif not all(graph.is_dtype(op.operands[i], plan.full) for i in indices):
        yield f"has an 8-bit format, and multiplies operands that are not {plan.full}"
    if not decision.scaling:
        yield "has an 8-bit format, and no scaling; want none or current"
    formats = Contract(decision.forward, decision.backward, kernel="auto")
    if decision.kernel and not has_kernel(graph, op, formats, plan.full):
        yield f"has kernel {decision.kernel!r}, which takes no such op or formats"


def _contraction(op: Op, decision: Decision, plan: Plan) -> Iterator[str]:
    """Yield accumulator and derivative dtypes that the op cannot have."""
    found = decision.accumulator, decision.derivative, decision.derivative_accumulator
    precision, (result, *_) = decision.precision, (*decision.results, "")
    kept = decision.op_class == OpClass.KEEP or not plan.low
    contracts = op.accumulates or op.contracted is not None
    if kept or not contracts or result not in (plan.low, plan.full):
        if any(found):
            yield "has sums or a derivative of its own, and is no contraction"
        return
    if not op.accumulates:
        want = (result, precision, OPERAND)
        if found != want:
            yield f"sums and derivative are {found}; the framework has {want}"
        return
    if decision.accumulator not in {result, plan.full}:
        yield f"hands over {decision.accumulator!r} for a result of {result}"
    if decision.derivative not in {precision, plan.low}:
        yield f"computes in {precision}, differentiated in {decision.derivative!r}"
    low = decision.derivative == plan.low
    sums = {OPERAND, plan.low, plan.full} if low else {OPERAND}
    if decision.derivative_accumulator not in sums:
        yield f"its derivatives hand over {decision.derivative_accumulator!r}"


# Consistency of the recomputed regions of a plan with its program.


def recompute_mistakes(graph: ProgramGraph, plan: Plan) -> Iterator[str]:
    """Yield the mistakes in the kept values and recomputed regions of a plan.

    Args:
        graph: The program.
        plan: The plan for it.
    """
    found = plan.recompute
    if found and not plan.training:
        yield "recompute: has regions, in a plan for inference"
    for kept in found.kept:
        if kept.value not in graph.values:
            yield f"recompute: keeps %{kept.value}, which the program has not"
    for number, region in enumerate(found.regions):
        where = f"recompute.regions[{number}]"
        if not region.ops:
            yield f"{where}: has no ops"
        for name in region.ops:
            op = graph.op_by_name.get(name)
            if op is None:
                yield f"{where}: the program has no op {name!r}"
            elif op.canonical != "boundary" and (
                op.mutates or op.fence or not repeats(op.canonical, op.traits.group)
            ):
                yield f"{where}: {name} ({op.canonical}) must not run twice"


# Check that a plan belongs to a program.

ANEW = "make a new plan with amprewrite.inspect"


def check_ops(graph: ProgramGraph, plan: Plan) -> None:
    """Check that ``plan`` decides about the ops of ``graph``, in their order.

    Raises:
        PlanMismatchError: Names the first op that differs.
    """
    for op, decision in zip(graph.ops, plan.decisions, strict=False):
        if (op.name, op.native) != (decision.op, decision.native):
            msg = (
                f"plan does not fit the program: the program has {op.name} "
                f"({op.native}) where the plan has {decision.op} ({decision.native}); "
                f"{ANEW}"
            )
            raise PlanMismatchError(msg)
    have, want = len(plan.decisions), len(graph.ops)
    if have != want:
        msg = f"plan does not fit the program: it has {have} decisions for {want} ops"
        raise PlanMismatchError(msg)


def check_fits(
    graph: ProgramGraph, plan: Plan, *, training: bool, mode: str = ""
) -> None:
    """Check that ``plan`` was made for ``graph``, and agrees with itself.

    Args:
        graph: The program.
        plan: A given plan, possibly from a file, possibly edited.
        training: Whether parameters keep their dtype, to be trained.
        mode: ``train`` or ``eval``, of a torch model.

    Raises:
        PlanMismatchError: Names the first op that differs, the mode, or every mistake
            in the plan.
    """
    if found := first_difference(fingerprint(graph), plan.program):
        name, here, there = found
        msg = (
            f"plan does not fit the program: first at {name}, where the program has\n"
            f"    {here}\n  and the plan was made for\n    {there}\n  {ANEW}"
        )
        raise PlanMismatchError(msg)
    check_ops(graph, plan)
    if plan.training != training:
        has, asked = (
            "to be trained" if flag else "for inference (training=False)"
            for flag in (plan.training, training)
        )
        msg = (
            f"plan was made for a model {has}, and this one is converted {asked}; pass "
            f"training={plan.training} to convert, or {ANEW}"
        )
        raise PlanMismatchError(msg)
    if plan.mode and mode and plan.mode != mode:
        msg = (
            f"plan was made for the model in {plan.mode} mode, and this one is in "
            f"{mode} mode; call .{plan.mode}() first, or {ANEW}"
        )
        raise PlanMismatchError(msg)
    check_plan(graph, plan)
