"""The check that only a run can make: full and low precision side by side, once.

Structure does not tell whether a value leaves the range of its dtype, how far an exact
argument is rounded, or whether a loop ends. A framework runs both programs once on the
arguments that are at hand, and shows what it sees to a :class:`RunCheck`, which keeps
the first case of each kind and words it as a warning.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from amprewrite.dtypes import format_of, is_float
from amprewrite.errors import (
    ExactArgumentWarning,
    LoopWarning,
    Notice,
    OverflowWarning,
)
from amprewrite.ir import Op, ProgramGraph
from amprewrite.ops import Group
from amprewrite.ops.compounds import call_traits
from amprewrite.plan import Decision, Plan

Array = NDArray[np.float64]

MATTERS = 0.05
"""Largest rounding of an exact argument that passes, in radians, steps or bins.

A sine moves by at most as much, and one rounding in twenty then crosses a step.
"""

SHARE = 0.01
"""Share of the elements that have to move by more: a single outlier is no defect."""

ROUNDINGS = 8
"""Roundings of the full dtype that an argument has anyway, beside those of the low one.

They come on top of :data:`MATTERS`: a phase of 1e7 radians has an error of 1 radian in
float32 already.
"""

PATIENCE = 10
"""Limit on the steps of a loop in low precision, as a multiple of those in full."""

INTENDED = 1e30
"""Magnitude above which a number stands for infinity, as in a mask of -3.4e38.

float32 ends at 3.4e38, and sums of such a mask and of scores stay above.
"""

RULES = 3
"""Most rules that a warning suggests; later ops often need none once these are full."""


class Extent(NamedTuple):
    """Values of an op that are finite in full precision and not in low precision.

    Attributes:
        lost: Number of these elements.
        size: Number of all elements.
        largest: Largest magnitude of the result in full precision.
    """

    lost: int
    size: int
    largest: float


@dataclass
class RunCheck:
    """Collection of what one run of both programs shows.

    Attributes:
        graph: The program.
        plan: Its plan.
        narrow: Whether values may leave the range of a dtype of the plan.
        exact: Ops with an exact argument that is computed from rounded values.
        loops: Ops that decide whether a loop goes on, from rounded values.
    """

    graph: ProgramGraph
    plan: Plan
    narrow: bool
    exact: Mapping[str, Op]
    loops: frozenset[str]
    _notices: dict[type[Notice], Notice] = field(
        default_factory=dict[type[Notice], Notice]
    )

    @classmethod
    def of(cls, graph: ProgramGraph, plan: Plan) -> "RunCheck | None":
        """Return the check of a program; None if a run would tell nothing.

        Args:
            graph: The program.
            plan: Its plan.
        """
        if not (plan.low or plan.quantised):
            return None
        rounded = _rounded_values(graph, plan)
        reads = [op for op in graph.ops if not rounded.isdisjoint(op.operands)]
        exact = {op.name: op for op in reads if _unit(graph, op) is not None}
        loops = frozenset(op.name for op in reads if op.decides)
        narrow = is_narrow(plan)
        shows = narrow or exact or loops
        return cls(graph, plan, narrow, exact, loops) if shows else None

    def saw_overflow(self, names: Iterable[str], extent: Extent) -> None:
        """Note values that are not finite in low precision alone.

        Args:
            names: Names of the op, or of others; the first that the plan has is named.
            extent: The values.
        """
        if OverflowNotice in self._notices:
            return
        by_op = self.plan.by_op
        decision = next((by_op[name] for name in names if name in by_op), None)
        text = overflow_text(self.plan, decision, extent)
        if decision is not None:
            text = f"{text}; {self._cure(decision.op, alone=True)}, or use bf16"
        self._notices[OverflowNotice] = OverflowNotice(text)

    def saw_cast(self, readers: Iterable[str], maker: str, extent: Extent) -> None:
        """Note an inserted cast with a result that is not finite.

        A selection may drop such values, and the results of an op that moves data are
        looked at themselves.

        Args:
            readers: Names of the ops that read it, or of other inserted nodes.
            maker: Name of the op that makes its operand.
            extent: The values.
        """
        decisions = [self.plan.by_op[n] for n in readers if n in self.plan.by_op]
        names = [d.op for d in decisions if d.op_class != "follow"]
        if names or not decisions:
            self.saw_overflow([*names, maker], extent)

    def saw_argument(self, name: str, full: Sequence[Any], low: Sequence[Any]) -> None:
        """Compare the operands of an op that needs an exact argument.

        Args:
            name: Name of the op.
            full: Its operands in full precision, in order: arrays and numbers.
            low: Its operands in low precision.
        """
        op = self.exact[name]
        unit = _unit(self.graph, op)
        if ExactArgumentNotice in self._notices or unit is None:
            return
        arguments = [unit.measure([*map(np.asarray, side)]) for side in (full, low)]
        if any(argument is None for argument in arguments):
            return
        exact, rounded = (np.asarray(argument, np.float64) for argument in arguments)
        if exact.shape != rounded.shape or not exact.size:
            return
        moved = _moved(exact, rounded, format_of(self.plan.full).precision)
        share = float((moved > MATTERS).mean())
        if share < SHARE:
            return
        text = (
            f"{_named(self.plan.by_op[name])} reads an argument that has to be exact, "
            f"and it is rounded by up to {float(moved.max()):.2g} {unit.name} (more "
            f"than {MATTERS:g} in {share:.0%} of {moved.size} elements); "
            f"{self._cure(name)}"
        )
        self._notices[ExactArgumentNotice] = ExactArgumentNotice(text)

    def saw_loop(self, name: str, full: int, low: int) -> None:
        """Compare the numbers of steps of a loop.

        Args:
            name: Name of the op that decides whether it goes on.
            full: Number of steps in full precision.
            low: Number of steps in low precision; :func:`limit` of ``full`` if it was
                stopped.
        """
        if LoopNotice in self._notices or full == low:
            return
        plan = self.plan
        steps = f"takes {low} steps in {plan.low} and {full} in {plan.full}"
        if low >= limit(full):
            steps = (
                f"has not ended after {low} steps in {plan.low}, and ends after {full} "
                f"in {plan.full}"
            )
        where = _named(plan.by_op[name])
        text = f"the loop that {where} ends {steps}; {self._cure(name)}"
        self._notices[LoopNotice] = LoopNotice(text)

    def notices(self) -> tuple[Notice, ...]:
        """Return one line for each kind of defect that was seen.

        A plan that was given may have the lines of an earlier run already.
        """
        told = self.plan.warnings
        return tuple(line for line in self._notices.values() if line not in told)

    def _cure(self, name: str, *, alone: bool = False) -> str:
        """Return the advice to deny what rounds the operands of an op, or the op.

        Args:
            name: Name of the op.
            alone: Whether an op that is low itself is all that has to be denied.
        """
        plan, makers = self.plan, list[str]()
        if _rounds(plan, plan.by_op[name]):
            makers.append(name)
        if not (alone and makers):
            makers += _roundings(self.graph, plan, self.graph.op_by_name[name])
        if not makers:
            return "pass tolerance="
        rules = ", ".join(map(deny, makers[:RULES]))
        names = ", ".join(makers[:RULES]) + (", ..." if makers[RULES:] else "")
        return f"deny {names}, overrides=[{rules}], or pass tolerance="


def limit(full: int) -> int:
    """Return the number of steps after which a loop in low precision is stopped.

    Args:
        full: Its number of steps in full precision.
    """
    return PATIENCE * (full + 1)


class OverflowNotice(Notice):
    """A line about values beyond the range of their dtype."""

    category = OverflowWarning


class ExactArgumentNotice(Notice):
    """A line about an exact argument that is rounded."""

    category = ExactArgumentWarning


class LoopNotice(Notice):
    """A line about a loop that takes another number of steps."""

    category = LoopWarning


def is_narrow(plan: Plan) -> bool:
    """Return whether a plan lowers to a dtype with a smaller range than its full one.

    float16 ends at 65504, and formats of 8 bits end earlier; bfloat16 has the exponents
    of float32, so it is not narrow.
    """
    if plan.quantised:
        return True
    if not plan.low or not plan.lowered:
        return False
    low, full = format_of(plan.low).max, format_of(plan.full).max
    return low < full / 2**16


def deny(name: str) -> str:
    """Return the rule that keeps an op in full precision, as a user writes it."""
    return f'{{"op_name": "{name}", "class": "deny"}}'


def overflow_text(plan: Plan, decision: Decision | None, extent: Extent) -> str:
    """Return the text that names the op that overflowed, and its values.

    Args:
        plan: The plan.
        decision: Decision about the op; None if it is not in the plan.
        extent: The values.
    """
    narrow = (decision.forward if decision is not None else "") or plan.low
    where = (
        "a cast that the plan does not name" if decision is None else _named(decision)
    )
    least, most = format_of(narrow).smallest_subnormal, format_of(narrow).max
    return (
        f"{where} is not finite in {narrow}, which reaches from {least:.0e} to "
        f"{most:g}, and finite in {plan.full}: {extent.lost} of {extent.size} "
        f"elements, of up to {extent.largest:.3g}"
    )


def _named(decision: Decision) -> str:
    """Return the name of an op with its place in the model."""
    place = ", ".join(part for part in (decision.path, decision.source) if part)
    return f"{decision.op} ({place})" if place else decision.op


def _is_rounded(plan: Plan, decision: Decision) -> bool:
    """Return whether an op computes or stores a float in the low dtype or in 8 bits."""
    dtypes = decision.precision, *decision.operands, *decision.results
    return decision.quantises or (bool(plan.low) and plan.low in dtypes)


def _rounded_values(graph: ProgramGraph, plan: Plan) -> frozenset[str]:
    """Return the values that depend on one that the plan rounds."""
    rounded: set[str] = {name for name, _ in plan.storage}
    rounding = {d.op for d in plan.decisions if _is_rounded(plan, d)}
    before = -1
    while before < len(rounded):  # carries lead back to the beginning of a loop
        before = len(rounded)
        for op in graph.ops:
            if op.name in rounding or not rounded.isdisjoint(op.operands):
                rounded.update(op.results)
                rounded.update(op.turns)
    return frozenset(rounded)


def _rounds(plan: Plan, decision: Decision) -> bool:
    """Return whether an op computes in the low dtype or in 8 bits."""
    return decision.quantises or decision.precision == plan.low


def _roundings(graph: ProgramGraph, plan: Plan, reader: Op) -> Iterator[str]:
    """Yield the nearest ops that round what ``reader`` reads, the nearest first.

    The search ends at contractions: what they read is rounded by itself, and full if
    they are. Ops that only move data are passed by.
    """
    before: dict[str, list[Op]] = {}
    for op in graph.ops:
        for name in (*op.results, *op.turns):
            before.setdefault(name, []).append(op)
    queue, seen = [reader], {reader.name}
    for op in queue:  # which grows
        for maker in (m for name in op.operands for m in before.get(name, ())):
            if maker.name in seen:
                continue
            seen.add(maker.name)
            decision = plan.by_op[maker.name]
            rounds = _rounds(plan, decision)
            if rounds and decision.op_class not in ("follow", "keep"):
                yield maker.name
            if not rounds or decision.op_class != "allow":
                queue.append(maker)


def _moved(exact: Array, rounded: Array, digits: int) -> Array:
    """Return by how much each argument is moved beyond its error in full precision."""
    with np.errstate(invalid="ignore", over="ignore"):
        moved = abs(rounded - exact) - ROUNDINGS * 2.0**-digits * abs(exact)
    lost = np.isfinite(exact) & ~np.isfinite(rounded)
    moved = np.where(np.isfinite(exact), moved, 0)
    return np.asarray(np.where(lost, np.inf, moved).clip(0), np.float64)


# --- units of exact arguments --------------------------------------------------------

Operands = Sequence[NDArray[Any]]
"""Operands of an op, in order."""

Argument = NDArray[Any] | None


class Unit(NamedTuple):
    """Unit in which an exact argument counts.

    Attributes:
        name: Its name in the plural.
        measure: Returns the argument in this unit, from the operands of the op; None if
            these have another form.
    """

    name: str
    measure: Callable[[Operands], Argument]


def _argument(operands: Operands) -> Argument:
    return operands[0]


def _phase(operands: Operands) -> Argument:
    """Return the phase of a complex exponential, or of a number in polar form."""
    return operands[1] if operands[1:] else np.asarray(np.imag(operands[0]))


def _quotient(operands: Operands) -> Argument:
    if not operands[1:]:
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.divide(*operands[:2], dtype=np.float64)


def _bin(value: int, borders: int) -> Callable[[Operands], Argument]:
    """Return a function that places a value between sorted borders, in a row.

    Args:
        value: Index of the operand with the values.
        borders: Index of the operand with the borders.
    """

    def place(operands: Operands) -> Argument:
        if not operands[1:] or operands[borders].ndim != 1:
            return None
        if not operands[borders].size:  # a value is in the only bin
            return np.zeros_like(operands[value], np.float64)
        ranks = np.arange(operands[borders].size, dtype=np.float64)
        return np.asarray(np.interp(operands[value], operands[borders], ranks))

    return place


def _side(operands: Operands) -> Argument:
    """Return on which side of a border a value is, in a search by comparisons."""
    return np.less(*operands[:2]) if operands[1:] else None


_TURN, _STEP = Unit("radians", _argument), Unit("steps", _argument)
_PERIOD = Unit("multiples of the divisor", _quotient)

UNITS: Mapping[str, Unit] = {
    **dict.fromkeys(("sin", "cos", "tan"), _TURN),
    "sinc": Unit("half turns", _argument),
    "polar": Unit("radians", _phase),
    **dict.fromkeys(("ceil", "fix", "floor", "frac", "round", "trunc"), _STEP),
    **dict.fromkeys(("floor_divide", "fmod", "remainder"), _PERIOD),
    "bucketize": Unit("bins", _bin(0, 1)),
    "searchsorted": Unit("bins", _bin(1, 0)),
}
"""Units by canonical name; the table of ops has more ops, without a natural unit."""


def _unit(graph: ProgramGraph, op: Op) -> Unit | None:
    """Return the unit of the argument of ``op``; None if it need not be exact."""
    values = [graph.values[name] for name in op.operands]
    turns = any(value.dtype.startswith("complex") for value in values)
    if not turns and not any(value.is_float for value in values):
        return None
    if op.traits.exact_argument:
        return UNITS.get(op.canonical)
    if op.canonical == "cast" and _is_integer(op.dtype_argument):
        return _STEP
    compares = op.traits.orders or op.traits.group == Group.COMPARISON
    if compares and any(call_traits(call).exact_argument for call in op.calls):
        return Unit("bins", _side)
    if turns and op.traits.group == Group.EXPONENTIAL:
        return Unit("radians", _phase)
    return None


def _is_integer(dtype: str) -> bool:
    return not (is_float(dtype) or dtype.startswith("complex") or dtype == "bool")
