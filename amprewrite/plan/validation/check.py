"""Consistency of a plan with itself and its program, which an edit may break.

Plans made by the passes satisfy all of this; a property test checks it on random
programs. Writers rely on it, so that a plan edited by hand is applied exactly, or
refused.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator

from amprewrite.errors import PlanMismatchError
from amprewrite.ir import Op, ProgramGraph
from amprewrite.plan.file import mistakes_head
from amprewrite.plan.model import OUTPUT, Cast, Decision, Plan
from amprewrite.plan.uses import is_at_definition, output_sources
from amprewrite.plan.validation.check_decision import decision_mistakes
from amprewrite.plan.validation.check_recompute import recompute_mistakes
from amprewrite.policy import OpClass

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
