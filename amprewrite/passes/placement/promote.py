"""Placement ``promote``: forward promotion under demand, iterated to a fixed point.

A storage that some op writes has one dtype for all its views, and a contraction with
only full readers returns its accumulator. Both are known only after a walk.
"""

from collections.abc import Callable, Container, Iterator
from dataclasses import replace
from heapq import heappop, heappush

from amprewrite.dtypes import is_float
from amprewrite.ir import Op
from amprewrite.ops import Group
from amprewrite.passes.analysis.classify import USER_CAST, lowers_promoted
from amprewrite.passes.analysis.context import (
    NOTHING_PLACED,
    Placed,
    Placement,
    Situation,
)
from amprewrite.passes.analysis.demand import ANY, FULL
from amprewrite.passes.analysis.values import (
    RETURNED_VIEW,
    extreme_constants,
    is_transparent,
    lost_literals,
)
from amprewrite.policy.match import Match
from amprewrite.policy.model import ACCUMULATE, ALLOW, DENY, FOLLOW, KEEP, PROMOTE


def place(situation: Situation, before: Placement = NOTHING_PLACED) -> Placement:
    """Return the placement of every op.

    Args:
        situation: The facts about the program.
        before: A placement in the same situation, possibly with other weights stored
            low; its decisions about unaffected ops are reused.

    A walk finds written storages that some writer needs in full, and contractions with
    only full readers; it is repeated with the former pinned and the latter returning
    their accumulators, until none is added.
    """
    pinned = situation.returned.storages
    wide: frozenset[str] = frozenset()
    while True:
        walk = Walk(situation, pinned, wide, before)
        before = walk.run()
        more = _accumulators(situation, before)
        if walk.to_pin <= pinned and more <= wide:
            return before
        pinned |= walk.to_pin
        wide |= more


def _accumulators(situation: Situation, placement: Placement) -> set[str]:
    """Return the contractions with results that are only read in full, or guarded.

    Their accumulators are returned as they are, instead of being rounded and cast up
    again; ops that only move the result are looked through.
    """
    graph, full = situation.graph, situation.policy.full
    if not any(op.accumulates for op in graph.ops):
        return set()
    read, read_low = set(graph.outputs), set[str]()
    found: set[str] = set()
    for op in reversed(graph.ops):
        placed = placement.ops[op.name]
        moves = situation.classes[op.name].op_class is FOLLOW
        in_full = op.accumulates or moves
        for name in op.results if in_full else ():
            wide = graph.values[name].dtype == full
            if wide and (name not in read or name in read_low):
                in_full = False
        in_full = in_full or op.name in situation.guards
        if in_full and op.accumulates and placed.precision == situation.policy.low:
            found.add(op.name)
        read.update(op.operands)
        widens = op.canonical == USER_CAST and placed.results == (full,)
        if not widens and not (moves and in_full):
            pairs = zip(op.operands, placed.operands, strict=True)
            read_low.update([name for name, dtype in pairs if dtype != full])
    return found


# One forward walk of placement ``promote``.
#
# Ops are visited in program order. A deny op computes in full, an allow op in low, the
# others in the promoted dtype of their operands, unless all users demand full. The
# state is the *stored* dtype of each value: that of the op that made it, with two
# exceptions: a weight may be stored low from the start, and a storage that some op
# writes has one dtype for all its views, however it was made.


class Walk:
    """One walk over the ops, given the storages and contractions kept in full.

    After the first walk only the ops are visited that depend on a weight, a storage or
    a contraction that is treated differently now, and then their readers.

    Attributes:
        to_pin: Storages that must be kept full, found on the way.
    """

    def __init__(
        self,
        situation: Situation,
        pinned: frozenset[str],
        accumulating: frozenset[str],
        before: Placement,
    ) -> None:
        """Copy the placement of the previous walk.

        Args:
            situation: The facts about the program.
            pinned: Storages kept full.
            accumulating: Contractions that return their accumulators.
            before: Placement of the previous walk.
        """
        self.at = situation
        self.graph = situation.graph
        self.full, self.low = situation.policy.full, situation.policy.low
        self.to_pin: set[str] = set()
        self.before = before
        self.out = Placement(
            dict(before.ops),
            dict(before.stored),
            situation.low_weights,
            pinned,
            accumulating,
        )

    def run(self) -> Placement:
        """Return the placement."""
        inputs = [value.name for value in self.graph.inputs()]
        changed = [name for name in inputs if self._store_input(name)]
        if not self.before.ops:
            for op in self.graph.ops:
                self._decide(op)
            return self.out
        waiting = self._concerned()
        waiting.update(self._readers(changed))
        order = sorted(waiting)  # a heap: readers come after their operands
        while order:
            changed = self._decide(self.graph.ops[heappop(order)])
            for position in self._readers(changed):
                if position not in waiting:
                    waiting.add(position)
                    heappush(order, position)
        return self.out

    def _readers(self, names: list[str]) -> Iterator[int]:
        """Yield the positions of the ops that read any of the values."""
        for name in names:
            for op, _ in self.graph.users[name]:
                yield self.graph.position[op.name]

    def _concerned(self) -> set[int]:
        """Return the positions of the ops affected by changes since the last walk."""
        now, before = self.out, self.before
        moved = now.low_weights ^ before.low_weights
        pinned = now.pinned ^ before.pinned
        position = self.graph.position
        concerned = {position[name] for name in now.accumulating ^ before.accumulating}
        if not (moved or pinned or self.graph.written):
            return concerned
        roots = self.at.weights
        for number, op in enumerate(self.graph.ops):
            makes = any(r in roots and roots[r] & moved for r in op.results)
            keeps = any(self.graph.storage(r) in pinned for r in op.results)
            if op.mutates or makes or keeps:
                concerned.add(number)
        return concerned

    def _store_input(self, name: str) -> bool:
        """Store the dtype of an input; return whether it changed."""
        dtype = self.graph.values[name].dtype
        return self._store(name, self.low if name in self.at.low_weights else dtype)

    def _store(self, name: str, dtype: str) -> bool:
        known = self.out.stored.get(name)
        self.out.stored[name] = dtype
        return known != dtype

    def _decide(self, op: Op) -> list[str]:
        """Place ``op``; return the results with a changed stored dtype."""
        before = self.out.ops.get(op.name)
        placed = self.out.ops[op.name] = self._place(op)
        results = placed.results
        if self._widens_rows(op):
            results = self._traced(op.results)
        pairs = zip(op.results, results, strict=True)
        changed = [
            name for name, made in pairs if self._store(name, self._stored(name, made))
        ]
        if op.mutates:
            self._watch_mutation(op, placed)
        if before is None or before.results != placed.results:
            returned = self.at.returned.values.intersection(op.results)
            changed += sorted(returned.difference(changed))
        return changed

    def _widens_rows(self, op: Op) -> bool:
        """Return whether ``op`` looks up rows in a low table and stores them full.

        The rows begin a residual stream, to which every layer adds. In bfloat16, T5
        with random weights had 1.2 to 1.4 times the error of torch.autocast, which has
        a full table.
        """
        if not self.at.low_weights or op.traits.group != Group.LOOKUP:
            return False
        if self.at.policy.lookups == "low" or op.fence:
            return False
        roots = self.at.weights.get(op.operands[0], frozenset[str]())
        low = self.out.stored[op.operands[0]] == self.low
        return low and bool(roots & self.at.low_weights)

    def _stored(self, name: str, made: str) -> str:
        """Return the stored dtype of a result; pinned and returned ones are full."""
        if name in self.at.returned.values:
            return self.full
        if self.out.pinned and self.graph.storage(name) in self.out.pinned:
            return self.graph.values[name].dtype
        return made

    def _watch_mutation(self, op: Op, placed: Placed) -> None:
        """Pin a storage that an op writes, if it computes wider than the storage."""
        for index in op.mutates:
            name = op.operands[index]
            wide = self.full in (placed.precision, placed.operands[index])
            if self.out.stored[name] == self.low and wide:
                self.to_pin.add(self.graph.storage(name))

    def _place(self, op: Op) -> Placed:
        found = self.at.classes[op.name]
        if op.reads and not lowers_promoted(op, self.at.policy):
            return self._as_promoted(op, found)
        if op.canonical == USER_CAST and not op.fence:
            return self._user_cast(op)
        if op.name in self.at.returned.views:
            return self._run(op, self.full, RETURNED_VIEW)
        if guard := self.at.guard_of(op):
            return self._run(op, self.full, guard.why, guard.causes)
        return self._by_class(op, found)

    def _by_class(self, op: Op, found: Match) -> Placed:
        op_class = found.op_class
        if op_class is DENY:
            return self._run(op, self.full, found.why)
        if op_class is KEEP:
            return self._keep(op, found)
        if self.at.demands.is_exact(op):
            return self._exact(op)
        if op_class is ALLOW:
            return self._allow(op, found)
        if op_class is ACCUMULATE:
            return self._accumulate(op, found)
        return self._promote(op, found)

    def _traced(self, names: tuple[str, ...]) -> tuple[str, ...]:
        values = self.graph.values
        return tuple([values[name].dtype for name in names])

    def _read(self, op: Op) -> tuple[str, ...]:
        """Return the dtype in which each operand was read when the op was traced."""
        return op.reads or self._traced(op.operands)

    def _keep(self, op: Op, found: Match) -> Placed:
        """Place a keep op at its traced dtypes; metadata is read in any dtype."""
        results = self._traced(op.results)
        if self.at.low_weights:
            pairs = zip(op.results, results, strict=True)
            weights = self.at.low_weights
            results = tuple(self.low if n in weights else dtype for n, dtype in pairs)
        precision = next(
            (d for d in results if is_float(d)), results[0] if results else ""
        )
        if op.operand_rule == "any" and not op.fence:
            operands = tuple(self.out.stored[name] for name in op.operands)
        else:
            operands = self._traced(op.operands)
            floats = [d for d in operands if is_float(d)]
            precision = floats[0] if floats else precision
        return Placed(precision, operands, results, found.why)

    def _as_promoted(self, op: Op, found: Match) -> Placed:
        """Place an op with promoted operands at the dtypes of the capture."""
        results = self._traced(op.results)
        pairs = zip(op.reads, self._traced(op.operands), strict=True)
        precision = next(read for read, traced in pairs if read != traced)
        return Placed(precision, op.reads, results, found.why)

    def _user_cast(self, op: Op) -> Placed:
        """Place a user's cast at its named dtype; follow a weight stored low."""
        operands = tuple(self.out.stored[name] for name in op.operands)
        results = self._traced(op.results)
        noop = op.dtype_argument == self.full and results == (self.full,)
        roots = self.at.weights.get(op.results[0])
        if noop and roots and roots <= self.at.low_weights:
            return Placed(
                self.low, operands, (self.low,), "follows a weight stored low"
            )
        if op.name in self.at.followed:
            return self._following_cast(op, operands)
        self._keep_alias(op)
        return Placed(results[0], operands, results, self.at.classes[op.name].why)

    def _keep_alias(self, op: Op) -> None:
        """Pin the storage of a cast of full to full that is written in place."""
        storage = self.graph.storage(op.results[0])
        source = op.operands[0] if op.operands else op.results[0]  # a number is cast
        same = self.graph.storage(source) == storage and storage in self.graph.written
        if same and self.out.stored.get(source) == self.low:
            self.to_pin.add(storage)

    def _is_low(self, name: str) -> bool:
        """Return whether a value is low, or the accumulator of a low op."""
        maker = self.graph.producer.get(name)
        if maker and self.at.classes[maker.name].op_class is ALLOW:
            return self.out.ops[maker.name].precision == self.low
        return self.out.rounded_to(self.at, name) == self.low

    def _following_cast(self, op: Op, operands: tuple[str, ...]) -> Placed:
        """Place a following cast at the dtype that the followed values have now."""
        if self.graph.storage(op.results[0]) in self.graph.written:
            return self._written_cast(op, operands)
        demand = self.at.demands.on_op(op)
        if demand is not ANY:
            causes = self.at.demands.path(self.graph, op)
            why = f"{causes[-1]} wants full precision"
            return Placed(self.full, operands, (self.full,), why, causes)
        followed = self.at.followed[op.name]
        wide = [n for n in followed if not self._is_low(n)]
        dtype = self.full if wide or not followed else self.low
        names = f"%{(wide or followed)[0]}" if followed else "its operand"
        why = f"its dtype follows that of {names}, which is {dtype}"
        return Placed(dtype, operands, (dtype,), why, self._makers(wide or [*followed]))

    def _written_cast(self, op: Op, operands: tuple[str, ...]) -> Placed:
        """Place a cast with a result written in place: it stays a view, or a copy."""
        storage = self.graph.storage
        if op.operands and storage(op.operands[0]) == storage(op.results[0]):
            why = "a view of a value written in place: a cast would make it a copy"
            return Placed(operands[0], operands, operands[:1], why)
        why = "a copy that is written in place: it keeps the dtype that it has"
        return Placed(self.full, operands, (self.full,), why)

    def _run(
        self, op: Op, precision: str, why: str, causes: tuple[str, ...] = ()
    ) -> Placed:
        """Place ``op`` in ``precision``: all its full operands and results."""
        full = self.full
        operands = [precision if d == full else d for d in self._read(op)]
        beside = op.operand_rule == "lead" and precision == self.low
        others = self._full_operands(op)[1:] if beside else ()
        for index in (*others, *op.mutates):
            operands[index] = self.out.stored[op.operands[index]]
        return Placed(
            precision, tuple(operands), self._results(op, precision), why, causes
        )

    def _full_operands(self, op: Op) -> tuple[int, ...]:
        pairs, full = enumerate(self._read(op)), self.full
        return tuple([index for index, dtype in pairs if dtype == full])

    def _results(self, op: Op, precision: str) -> tuple[str, ...]:
        """Return the dtypes of results; for in-place writes, those of the storage."""
        if not op.mutates:
            full = self.full
            traced = self._traced(op.results)
            return tuple([precision if dtype == full else dtype for dtype in traced])
        made = list(self._traced(op.results))
        written = {
            self.graph.storage(op.operands[i]): op.operands[i] for i in op.mutates
        }
        for index, name in enumerate(op.results):
            if self.graph.storage(name) in written:
                made[index] = self.out.stored[written[self.graph.storage(name)]]
            elif made[index] == self.full:
                made[index] = precision
        return tuple(made)

    def _allow(self, op: Op, found: Match) -> Placed:
        stored = [self.out.stored[op.operands[index]] for index in op.mutates]
        if self.full in stored:
            why = f"writes in place to a value stored in {self.full}"
            return self._run(op, self.full, why)
        placed = self._run(op, self.low, found.why)
        if op.name not in self.out.accumulating:
            return placed
        reason = self.at.accumulator_reason(op)
        why = f"{found.why}; {reason}, so it hands over its accumulator"
        return replace(placed, results=self._traced(op.results), why=why)

    def _exact(self, op: Op) -> Placed:
        """Place in full an op that makes an exact argument."""
        why = self.at.demands.exact_reason(self.graph, op)
        causes = self.at.demands.path(self.graph, op)
        return self._run(op, self.full, why, causes)

    def _accumulate(self, op: Op, found: Match) -> Placed:
        if self.at.is_full_statistic(op):
            causes = self.at.demands.path(self.graph, op)
            why = f"{causes[-1]} wants full precision"
            return self._run(op, self.full, why, causes)
        lead = next(iter(self._full_operands(op)), None)  # a factory has none
        wide = lead is None or self._is_wide(op.operands[lead])
        stored = self.full if wide else self.low
        return self._run(op, stored, f"stored in {stored}; {found.why}")

    def _promote(self, op: Op, found: Match) -> Placed:
        computes = found.op_class is PROMOTE
        if computes and self.at.demands.on_op(op) is FULL:
            causes = self.at.demands.path(self.graph, op)
            return self._run(
                op, self.full, f"{causes[-1]} wants full precision", causes
            )
        if op.name in self.at.hoisted:
            why = f"a loop reads it in {self.low} alone: cast before the loop"
            return self._run(op, self.low, why)
        strong = self.strong(op)
        wide = [name for name in strong if self._is_wide(name)]
        if wide and op.name in self.at.biases:
            why = f"the bias of {self.at.biases[op.name]}: added in full, rounded once"
            return replace(self._run(op, self.full, why), results=(self.low,))
        if wide or not strong:
            return self._run(op, self.full, self._why_wide(wide), self._makers(wide))
        if computes and (lost := list(lost_literals(op, self.low))):
            why = f"the number {lost[0]!r} does not survive {self.low}"
            return self._run(op, self.full, why)
        why = f"its operands are {self.low}"
        return self._run(op, self.low, why, self._makers(strong))

    def strong(self, op: Op) -> list[str]:
        """Return the full-typed operands that decide the dtype; weak ones adapt."""
        names = [op.operands[index] for index in self._full_operands(op)]
        if op.operand_rule == "lead":
            return names[:1]
        strong = [name for name in names if not self._is_weak(name, op)]
        return strong or names

    def _is_wide(self, name: str) -> bool:
        """Return whether an operand that is read in full is stored wider than low.

        After promotion by another operand it may have another dtype: float16 beside
        bfloat16 makes float32, and an integer may be a position, which low would round.
        """
        return self.out.rounded_to(self.at, name) not in (self.low, "bool")

    def _is_weak(self, name: str, op: Op) -> bool:
        if name in self.at.weak:
            return True
        if not self.at.policy.weak_parameters or name not in self.at.weights:
            return False
        rank = max((len(self.graph.values[r].shape) for r in op.results), default=0)
        return len(self.graph.values[name].shape) < rank

    def _why_wide(self, wide: list[str]) -> str:
        if not wide:
            return f"its operands are literals, traced in {self.full}"
        return f"%{wide[0]} is {self.full}, and operands promote to the widest"

    def _makers(self, names: list[str]) -> tuple[str, ...]:
        maker = self.graph.producer.get(names[0]) if names else None
        return (maker.name,) if maker else ()


# Choose the weights that are stored low: those that no op reads in full.
#
# Without training, a cast of a weight is done once, at conversion; when training, only
# tensors filled with one number are made low instead of being cast. The choice is
# iterative: assume all candidates low, place, and drop those that some op still reads
# in full, until none is dropped and no new candidate appears.

Placer = Callable[[Situation, Placement], Placement]
"""Function that places all ops, from a placement with other stored weights."""


def place_with_storage(
    situation: Situation, *, keep_parameter_dtype: bool, placer: Placer | None = None
) -> tuple[Placement, frozenset[str]]:
    """Return the placement with as many weights stored low as possible.

    Args:
        situation: The facts before placement.
        keep_parameter_dtype: Whether parameters keep their dtype.
        placer: Function that places the ops; None for placement ``promote``.
    """
    place_all = placer or place

    def wanted(placement: Placement) -> frozenset[str]:
        found = _candidates(situation, placement)
        if keep_parameter_dtype:
            values = situation.graph.values
            return frozenset(c for c in found if values[c].kind == "result")
        return found

    first = placement = place_all(situation, NOTHING_PLACED)
    candidates = tried = wanted(first)
    while candidates:
        attempt = replace(situation, low_weights=candidates)
        placement = place_all(attempt, placement)
        kept = candidates - _read_in_full(attempt, placement)
        if kept == candidates:
            # An op may want one weight low only since another one is.
            more = wanted(placement) - tried
            if not more:
                return placement, candidates
            kept, tried = candidates | more, tried | more
        candidates = kept
    return first, frozenset()


def _leaf_uses(situation: Situation, placement: Placement) -> list[tuple[Op, int, str]]:
    """Return the uses that read a weight to compute, not only to move it.

    An assigned op counts as computing: it reads the weight in its precision.
    """
    graph, assignments = situation.graph, placement.assignments or {}
    return [
        (op, index, name)
        for op in graph.ops
        if op.name in assignments or not moves_weights(situation, op)
        for index, name in enumerate(op.operands)
        if name in situation.weights
    ]


def moves_weights(situation: Situation, op: Op) -> bool:
    """Return whether ``op`` only moves weights, so that its results are weights."""
    return is_transparent(op, situation.classes[op.name].op_class) and all(
        result in situation.weights for result in op.results
    )


def _candidates(situation: Situation, placement: Placement) -> frozenset[str]:
    """Return the weights with a low use, and tables that are only looked up.

    A mask with numbers beyond the low range is none: its cast saturates.
    """
    low: set[str] = set()
    for op, index, name in _leaf_uses(situation, placement):
        if placement.ops[op.name].operands[index] == situation.policy.low:
            low |= situation.weights[name]
    if situation.policy.lookups == "low":
        low |= only_looked_up(situation)
    return frozenset(low - extreme_constants(situation.graph, situation.policy.low))


def only_looked_up(situation: Situation) -> frozenset[str]:
    """Return the tables of lookups; another op may read them too."""
    graph = situation.graph
    tables: set[str] = set()
    for op in graph.ops:
        if op.traits.group == Group.LOOKUP and op.operands[0] in situation.weights:
            tables |= situation.weights[op.operands[0]]
    return frozenset(t for t in tables if len(graph.values[t].shape) > 1)


def carried(
    situation: Situation, assignable: Container[str]
) -> dict[str, frozenset[str]]:
    """Return, for each weight or moved weight, the weights that it comes from.

    Unlike ``situation.weights``, it excludes results of ops in ``assignable``, which
    have an assignment of their own.
    """
    inputs = {value.name for value in situation.graph.inputs()}
    found = {n: r for n, r in situation.weights.items() if n in inputs or n in r}
    for op in situation.graph.ops:
        if op.name not in assignable and moves_weights(situation, op):
            names = (found.get(name, frozenset[str]()) for name in op.operands)
            moved = frozenset[str]().union(*names)
            found.update({r: moved for r in op.results if r not in found})
    return found


def _read_in_full(situation: Situation, placement: Placement) -> frozenset[str]:
    """Return the weights that some op reads in full although they are stored low.

    A move that joins a weight with one that is stored full counts as such a read.
    """
    full = situation.policy.full
    found: set[str] = set()
    assignable = placement.assignments or {}
    known = carried(situation, assignable)
    for op in situation.graph.ops:
        if op.name not in assignable and moves_weights(situation, op):
            operands = placement.ops[op.name].operands
            pairs = zip(op.operands, operands, strict=True)
            full_ones = (name for name, dtype in pairs if dtype == full)
            found.update(*(known.get(n, ()) for n in full_ones))
    for op, index, name in _leaf_uses(situation, placement):
        chosen = placement.assignments is not None
        looked_up = op.traits.group == Group.LOOKUP and index == 0 and not chosen
        if placement.ops[op.name].operands[index] == full and not looked_up:
            found |= situation.weights[name]
    for output in situation.graph.outputs:
        found |= situation.weights.get(output, frozenset())
    return frozenset(found)
