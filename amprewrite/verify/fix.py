"""Fix: rules that keep the fewest ops in full precision so that a target is reached.

An op of class promote runs in the widest dtype of its operands, and one that moves data
hands that on. So an op that is kept full would take others with it up to the next
contractions: in a recurrent network, nearly all of every later step. Backwards, an op
of which only full ops read the result is demanded full, and so are the ones before it:
all of an activation that is written out. Rules that let the first of them be low, in
both directions, end that. One cast of a value serves all its readers.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from glob import escape
from math import inf, isfinite, isinf
from pathlib import Path

from amprewrite.errors import ToleranceError
from amprewrite.ir import Op, ProgramGraph
from amprewrite.plan import Decision, Plan
from amprewrite.policy import OpClass
from amprewrite.verify.blame import Effects, overflowing
from amprewrite.verify.rows import OpError


def held(plan: Plan, graph: ProgramGraph, kept: Collection[str]) -> tuple[str, ...]:
    """Return the ops to let be low so that no others become full, in program order.

    They run low in the plan, and would be full once ``kept`` are: they read a value
    that is full then, directly or moved, or their own are only read in full then.

    Args:
        plan: The plan of the converted program.
        graph: The program.
        kept: Names of ops that will be kept full.
    """
    spread = _Spread(plan, graph, frozenset(kept))
    found = {*spread.forward(), *spread.backward()}
    return tuple(op.name for op in graph.ops if op.name in found)


class _Spread:
    """The values that become full, followed through a program.

    Args:
        plan: The plan of the converted program.
        graph: The program.
        kept: Names of ops that will be kept full.
    """

    def __init__(self, plan: Plan, graph: ProgramGraph, kept: frozenset[str]) -> None:
        self.plan, self.graph, self.kept = plan, graph, kept
        self.wanted = self._wanted()

    def forward(self) -> Iterator[str]:
        """Yield the first ops on each way from the kept ones that can be low."""
        full: set[str] = set()
        for op in self.graph.ops:
            decision = self.plan.by_op[op.name]
            if op.name in self.kept:
                full.update(op.results)
            elif full.isdisjoint(op.operands) or not self._is_low(decision):
                continue
            elif self._is_written(op):  # it has the dtype of the storage
                full.update(op.results)
            elif self._is_promoted(decision) or self._is_moved(op, decision):
                yield op.name
            elif decision.op_class != OpClass.ALLOW:
                full.update(op.results)

    def backward(self) -> Iterator[str]:
        """Yield the first ops on each way back from the kept ones that can be low."""
        low = set[str]()  # values that are read low, moved or not
        near = set[str]()  # values that kept ops read, moved or not
        for op in reversed(self.graph.ops):
            decision = self.plan.by_op[op.name]
            is_read = not near.isdisjoint(op.results) and low.isdisjoint(op.results)
            if op.name in self.kept or (is_read and self._moves(decision)):
                near.update(op.operands)
                continue
            read = zip(op.operands, decision.operands, strict=False)
            low.update(name for name, dtype in read if dtype == self.plan.low)
            free = self._is_promoted(decision) and not self._is_written(op)
            if is_read and free and self._is_low(decision):
                yield op.name

    def _is_low(self, decision: Decision) -> bool:
        return self.plan.low in (decision.precision, *decision.results)

    def _is_promoted(self, decision: Decision) -> bool:
        """Return whether a rule would change the class promote of an op."""
        is_promote = decision.op_class == OpClass.PROMOTE
        return is_promote and decision.reason.is_overridable

    def _is_moved(self, op: Op, decision: Decision) -> bool:
        """Return whether an op moves values, may be low, and nothing reads it full."""
        if not (decision.reason.is_overridable and self._moves(decision)):
            return False
        return self.wanted.isdisjoint(op.results)

    def _is_written(self, op: Op) -> bool:
        """Return whether an op makes or views a storage that is written in place."""
        return any(self.graph.storage(n) in self.graph.written for n in op.results)

    def _moves(self, decision: Decision) -> bool:
        return decision.op_class == OpClass.FOLLOW

    def _wanted(self) -> set[str]:
        """Return the values that an op or an output reads in full, moved or not."""
        outputs = zip(self.graph.outputs, self.plan.outputs, strict=False)
        wanted = {name for name, dtype in outputs if dtype == self.plan.full}
        for op in reversed(self.graph.ops):
            decision = self.plan.by_op[op.name]
            if op.name in self.kept:
                wanted.update(op.operands)
            elif self._moves(decision):
                if not wanted.isdisjoint(op.results):
                    wanted.update(op.operands)
            else:
                read = zip(op.operands, decision.operands, strict=False)
                wanted.update(n for n, dtype in read if dtype == self.plan.full)
        return wanted


NOISE = 2.0
"""Multiple of the original's own error below which no target is sought.

Restored ops round in the original's dtype, in another order than the original does.
"""

CLOSE = 0.25
"""Distance of a predicted error that is trusted, relative to the measured one.

Predictions of the first order are within 15 % on models with random weights.
"""

FAR = 0.25
"""Part of the target below which more ops may be restored than are needed."""

DROPS = 16
"""Number of runs that look for ops which need not be kept full after all."""


@dataclass(frozen=True)
class Fix:
    """Rules that keep ops in full precision, and the error that is left.

    Attributes:
        policy: The policy that they extend: a name or the path of a file.
        target: The wanted error.
        error: Relative error of the outputs with these ops restored, as measured.
        ops: Names of the ops, the one that matters most first.
        held: Names of the ops beside these that would be full with them: rules let them
            be low.
        overrides: Rules for ``overrides=`` of :func:`amprewrite.convert`, those of the
            plan among them.
        runs: Number of runs with ops restored.
        lowered: Number of ops that the converted model runs in low precision.
    """

    policy: str
    target: float
    error: float
    ops: tuple[str, ...]
    overrides: tuple[Mapping[str, object], ...]
    runs: int = 0
    lowered: int = 0
    held: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return one line for the whole, and one for each op."""
        head = (
            f"error {self.error:.3g} (target {self.target:.3g}) with {len(self.ops)} "
            f"of {self.lowered} low ops in full precision, {self.runs} runs"
        )
        rest = [f"  {', '.join(self.held)} stay low beside them"] if self.held else []
        return "\n".join([head, *(f"  {op}" for op in self.ops), *rest])

    def to_toml(self) -> str:
        """Return the rules as a policy file."""
        about = f"{self.policy}, error at most {self.target:.3g}"
        lines = [
            f"extends = {_quoted(self.policy)}",
            f"description = {_quoted(about)}",
        ]
        for rule in self.overrides:
            pairs = [f"{key} = {_quoted(str(value))}" for key, value in rule.items()]
            lines += ["", "[[rules]]", *pairs]
        return "\n".join(lines) + "\n"

    def save(self, path: str | Path) -> None:
        """Write the rules as a policy file to ``path``."""
        Path(path).write_text(self.to_toml(), "utf-8")


def fix(
    rows: Sequence[OpError],
    effects: Effects,
    target: float,
    floor: float | None = None,
) -> Fix:
    """Return the fewest ops found that reach a target when kept in full precision.

    Ops that make values that are not finite come first, then those with the largest
    predicted part of the error, without a prediction of their own error. The shortest
    such list is found by bisection. Where the error that is left is not the predicted
    one, groups of it, then single ops, are left out if the target is reached without.

    Args:
        rows: Errors of each op, in program order.
        effects: Runs with ops restored.
        target: Wanted relative L2 error of all float outputs together.
        floor: Error of the original in its own dtype; None if unknown.

    Raises:
        ToleranceError: The target is no positive number, is below the noise floor, or
            is not reached with every op restored.
    """
    if not (isfinite(target) and target > 0.0):
        msg = f"fix({target!r}): the target is a relative error; want one above 0"
        raise ToleranceError(msg)
    if floor is not None and target < NOISE * floor:
        msg = (
            f"fix({target:.3g}): the original itself has an error of {floor:.3g} in "
            f"its own dtype, and a target below {NOISE * floor:.3g} is in its noise; "
            f"give a larger one, or convert from a wider dtype"
        )
        raise ToleranceError(msg, best=floor)
    plan = effects.live.ablation.plan
    order = _order(rows, effects)
    if effects.base.error <= target and not effects.base.lost:
        return _fix(plan, effects, target, (), len(order))

    def reaches(ops: Collection[str]) -> bool:
        left = effects.left(ops)
        return not left.lost and left.error <= target

    count = _guess(order, effects, target)
    needed = _shortest(order, count, reaches)
    if not reaches(needed):
        raise _unreachable(rows, effects, target, order)
    if not _is_sure(effects, needed, target):
        needed = _needed(needed, reaches)
    return _fix(plan, effects, target, needed, len(order))


def _shortest(
    order: tuple[str, ...], guess: int, reaches: Callable[[Collection[str]], bool]
) -> tuple[str, ...]:
    """Return the shortest beginning of a list that reaches the target, else all of it.

    Args:
        order: Ops, the one that matters most first.
        guess: Number of ops to try first, at least 1.
        reaches: Whether the target is reached with some ops.
    """

    def reached(count: int) -> bool:
        return reaches(order[:count])

    low, high = 0, guess
    while not reached(high):
        if high == len(order):
            return order
        low, high = high, min(len(order), max(2 * high, high + 1))
    step = 1  # the prediction is near: look close below it first
    while high - step > low and reached(high - step):
        high, step = high - step, 2 * step
    low = max(low, high - step)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return order[:high]


def _is_sure(effects: Effects, ops: Collection[str], target: float) -> bool:
    """Return whether each of the restored ops is needed, by the prediction.

    The error with them restored is about the predicted one, and not far below the
    target.
    """
    squares = effects.live.squares
    rest = sum(square for op, square in squares.items() if op not in ops)
    error = effects.left(ops).error
    return abs(rest**0.5 - error) <= CLOSE * error and error > FAR * target


def _needed(
    ops: tuple[str, ...], reaches: Callable[[Collection[str]], bool]
) -> tuple[str, ...]:
    """Return the ops without those that are not needed, by at most :data:`DROPS` runs.

    Args:
        ops: Ops with which the target is reached.
        reaches: Whether it is reached with some ops.
    """
    runs, size = 0, len(ops) // 2
    while size:
        start = 0
        while start < len(ops) > size:
            rest = ops[:start] + ops[start + size :]
            if runs == DROPS:
                return ops
            runs += 1
            if reaches(rest):
                ops = rest
            else:
                start += size
        size //= 2
    return ops


def _order(rows: Sequence[OpError], effects: Effects) -> tuple[str, ...]:
    """Return the ops that may be restored, the one that matters most first."""
    ablation, squares = effects.live.ablation, effects.live.squares
    by_op = {row.op: row for row in rows}
    beyond = overflowing(rows, ablation.plan, ablation.graph)
    rounding = {d.op for d in ablation.plan.decisions if _rounds(ablation.plan, d.op)}
    names = [
        op.name
        for op in ablation.graph.ops
        if op.name in rounding & ablation.restorable
        and not _is_view(op, ablation.graph)
    ]

    def rank(name: str) -> tuple[float, ...]:
        row = by_op.get(name)
        own = 0.0 if row is None else row.own
        lost = name in beyond or isinf(own)
        return (0.0 if lost else 1.0), -squares.get(name, 0.0), -own

    return tuple(sorted(names, key=rank))


def _rounds(plan: Plan, op: str) -> bool:
    decision = plan.by_op[op]
    dtypes = (decision.precision, *decision.operands, *decision.results)
    may_be_full = decision.reason.is_overridable and decision.op_class != "keep"
    return bool(plan.low) and plan.low in dtypes and may_be_full


def _is_view(op: Op, graph: ProgramGraph) -> bool:
    """Return whether an op views a storage that is written: no rule decides of it."""
    read = set(map(graph.storage, op.operands)) & graph.written
    return not op.mutates and any(graph.storage(name) in read for name in op.results)


def _guess(order: Sequence[str], effects: Effects, target: float) -> int:
    """Return the number of ops to restore by prediction, at least 1."""
    squares = effects.live.squares
    left = sum(x for x in (squares.get(op, 0.0) for op in order) if isfinite(x))
    if not left:
        return min(1, len(order)) or 1
    for count, op in enumerate(order):
        part = squares.get(op, 0.0)
        if left <= target * target and isfinite(part):
            return max(1, count)
        left -= part if isfinite(part) else 0.0
    return len(order)


def _fix(
    plan: Plan, effects: Effects, target: float, ops: tuple[str, ...], lowered: int
) -> Fix:
    graph = effects.live.ablation.graph
    low = held(plan, graph, ops)
    why = f"keeps the error of the outputs below {target:.3g}"
    kept = [_rule(op, "deny", why) for op in ops]
    kept += [_rule(op, "allow", "stays low beside ops that are full") for op in low]
    before = [
        {**rule.keys, "class": str(rule.op_class), "why": rule.why}
        for rule in plan.overrides
    ]
    return Fix(
        policy=plan.policy,
        target=target,
        error=effects.left(ops).error,
        ops=ops,
        overrides=(*kept, *before),
        runs=effects.runs,
        lowered=lowered,
        held=low,
    )


def _rule(op: str, op_class: str, why: str) -> Mapping[str, object]:
    return {"op_name": escape(op), "class": op_class, "why": why}


def _unreachable(
    rows: Sequence[OpError], effects: Effects, target: float, order: tuple[str, ...]
) -> ToleranceError:
    left = effects.left(order)
    faults = [row.op for row in rows if row.is_fault]
    found = "not finite" if left.lost else f"{left.error:.3g}"
    why = (
        f"ops differ from the original's beyond rounding ({', '.join(faults[:3])}), "
        f"which no rule repairs: see report.problems"
        if faults
        else "the rest is no rounding of single ops: see report.blame()"
    )
    msg = (
        f"fix({target:.3g}): with all {len(order)} low ops restored the error is "
        f"{found}; {why}; or give a larger target"
    )
    return ToleranceError(msg, best=inf if left.lost else left.error, ops=order[:3])


def _quoted(text: str) -> str:
    """Return a basic string of TOML, which escapes as JSON does."""
    return json.dumps(text, ensure_ascii=False)
