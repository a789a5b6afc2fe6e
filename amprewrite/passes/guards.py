"""Find the ops that run full for the sake of a guard.

``log(1 - x.clamp(max=0.999))`` is finite in float32; 0.999 in bfloat16 is 1, and the
logarithm is not. A literal, or an element of a constant, is a guard if low rounds it to
0, 1, -1 or infinity, and full does not (:func:`amprewrite.dtypes.fits.becomes`). An op
with such a number runs full if an op that needs full precision reads its result, at
once or through ops that only promote or follow; these run full as well, and so does the
op that computes the guarded value. A product stays low; where it can, it hands over its
accumulator if the number is next to 1, where low has a wide spacing. A number beyond
the range may saturate where a softmax or a comparison reads it; in a format with a
smaller range than full, the sums on the way there run full, since -65504 - 20 is minus
infinity in float16.

The program's own gradient, written out by JAX, is a reader like any. A value that is
written in place is read by all that later read its storage.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from math import isinf, isnan, nan
from typing import Literal

from amprewrite.dtypes import format_of, is_float
from amprewrite.dtypes.fits import becomes
from amprewrite.ir import Op, ProgramGraph
from amprewrite.passes.analysis.classify import MOVES, USER_CAST, classify
from amprewrite.passes.analysis.context import Guard
from amprewrite.passes.analysis.values import extreme_values, moved_inputs
from amprewrite.plan import Plan
from amprewrite.policy import Matcher, Reason
from amprewrite.policy.match import Match
from amprewrite.policy.model import ACCUMULATE, ALLOW, DENY, FOLLOW, KEEP, PROMOTE

# Readers of a guard: the ops that need its number unrounded, and the way to them.

SATURATING = frozenset(
    ("softmax", "exponential", "log_exp", "activation", "comparison", "ordering")
)
"""Groups that give the same for the largest finite number and for a larger one."""

Kind = Literal["edge", "range"]
KINDS: tuple[Kind, ...] = ("edge", "range")
"""Kinds of guards: next to 0, 1 or -1, or beyond the largest finite number."""


class Readers:
    """The values that an op reads which needs them unrounded, and the way to it."""

    def __init__(
        self,
        graph: ProgramGraph,
        classes: Mapping[str, Match],
        kind: Literal["edge", "range", "mask"],
        outputs: Iterable[str] = (),
    ) -> None:
        self.graph, self.classes, self.kind = graph, classes, kind
        self.next: dict[str, str] = {}  # by value, or by storage
        self.after: dict[str, str] = {}  # by op
        for name in outputs:
            self.next[self.key(name)] = "output"
        for op in reversed(graph.ops):
            follow = (self.next.get(self.key(name), "") for name in op.results)
            self.after[op.name] = next(filter(None, follow), "")
            if self.concerns(op):
                self.next.update((key, op.name) for key in self.keys(op))

    def key(self, name: str) -> str:
        """Return the storage of a value that is written in place; else its name."""
        storage = self.graph.storage(name)
        return storage if storage in self.graph.written else name

    def keys(self, op: Op) -> Iterator[str]:
        """Yield the keys of the floats that ``op`` reads."""
        values = self.graph.values
        return (self.key(name) for name in op.operands if values[name].is_float)

    def reaches(self, op: Op) -> bool:
        """Return whether a result of ``op`` comes to a reader that needs it."""
        return bool(self.after[op.name])

    def concerns(self, op: Op, *, is_source: bool = False) -> bool:
        """Return whether ``op`` needs its operands, or passes them to a reader.

        Args:
            op: The op.
            is_source: Whether the guard is a number of the op itself.
        """
        return self.needs(op) or ((is_source or self._passes(op)) and self.reaches(op))

    def needs(self, op: Op) -> bool:
        """Return whether ``op`` itself needs its operands unrounded."""
        op_class, group = self.classes[op.name].op_class, op.traits.group
        if op.canonical == USER_CAST and op_class is KEEP:
            return self.kind == "edge" and not is_float(op.dtype_argument)
        if self.kind == "mask":
            return op_class is DENY and group in SATURATING
        if self.kind == "range" and group in SATURATING:
            return False
        if op_class is KEEP:
            return op.operand_rule != "any" and op.canonical not in MOVES
        singular = op_class is PROMOTE and op.traits.singular
        return op_class is DENY or singular

    def _passes(self, op: Op) -> bool:
        """Return whether the results of ``op`` are as precise as its operands."""
        if op.canonical == USER_CAST:
            return is_float(op.dtype_argument)
        op_class, group = self.classes[op.name].op_class, op.traits.group
        if self.kind == "range" and group in SATURATING:
            return False
        norm = group == "normalisation"
        return op_class in (PROMOTE, FOLLOW) or (op_class is ACCUMULATE and not norm)

    def path(self, op: Op) -> tuple[str, ...]:
        """Return the ops from ``op`` to the one that needs it, nearest first."""
        names: list[str] = []
        name = self.after[op.name]
        while name:
            names.append(name)
            reader = self.graph.op_by_name.get(name)
            ends = reader is None or self.needs(reader)
            name = "" if ends else self.after[name]
        return tuple(names)


def known_numbers(
    graph: ProgramGraph, classes: Mapping[str, Match]
) -> dict[str, tuple[float, ...]]:
    """Return the numbers of values that are made of constants alone.

    NaN stands for a number that is only known at run time: a sum of constants, or a
    scalar that is an argument.
    """
    numbers = {value.name: value.numbers for value in graph.inputs() if value.numbers}
    numbers.update(
        (value.name, (nan,))
        for value in graph.inputs("input", "parameter")
        if value.shape == () and value.is_float
    )
    fixed = {value.name for value in graph.inputs("constant", "buffer")} | {*numbers}
    for op in graph.ops:
        floats = [name for name in op.operands if graph.values[name].is_float]
        fills = op.traits.filler and op.operand_rule == "any"
        if op.fence or op.mutates or not (fills or fixed.issuperset(floats)):
            continue
        if not floats and op.operands and not fills:
            continue  # integers of the program
        fixed.update(op.results)
        parts = op.literals if fills or not floats else ()
        for name in () if fills else floats:
            parts = (*parts, *numbers.get(name, ()))
        moves = classes[op.name].op_class in (FOLLOW, KEEP)
        if moves:
            numbers.update((r, parts) for r in op.results if parts)
        else:
            numbers.update((r, (nan,)) for r in op.results)
    return numbers


BOUNDING = frozenset(("clamp", "selection"))
"""Groups with bounds and replacements as operands."""

FACTORS = frozenset(("activation", "dropout", "power", "square"))
"""Groups with factors and exponents as literals: 0.999 may be 1."""

BOUNDARIES = frozenset(("carry", "enter", "leave"))
"""Ops that pass values into a body or out of it, in the dtype that the values have."""


def find_guards(
    graph: ProgramGraph,
    classes: Mapping[str, Match],
    outputs: Iterable[str],
    low: str,
    full: str,
) -> dict[str, Guard]:
    """Return the ops that run full because of a guard, by op name.

    Args:
        graph: The program.
        classes: Class of every op.
        outputs: Values that are returned in full precision.
        low: The low dtype.
        full: The full dtype.
    """
    numbers = known_numbers(graph, classes)
    finder = _Finder(graph, classes, numbers, low, full)
    return finder.find(tuple(outputs))


class _Finder:
    def __init__(
        self,
        graph: ProgramGraph,
        classes: Mapping[str, Match],
        numbers: Mapping[str, tuple[float, ...]],
        low: str,
        full: str,
    ) -> None:
        self.graph, self.classes, self.numbers = graph, classes, numbers
        self.low, self.full = low, full
        self.guards: dict[str, Guard] = {}

    def find(self, outputs: tuple[str, ...]) -> dict[str, Guard]:
        lost = {op.name: self._lost(op) for op in self.graph.ops}
        for kind in KINDS:
            sources: dict[str, float] = {}
            for name, numbers in lost.items():
                sources.update((name, x) for x in numbers if self._kind(x) == kind)
            if sources:
                readers = Readers(self.graph, self.classes, kind, outputs)
                self._spread(sources, readers)
        low, full = format_of(self.low), format_of(self.full)
        if low.exponent_bits < full.exponent_bits:
            extreme = extreme_values(self.graph, self.classes, self.low)
            self._keep_sums(extreme | moved_inputs(self.graph, self.classes))
        return self.guards

    def _lost(self, op: Op) -> tuple[float, ...]:
        """Return the numbers of ``op`` that low rounds to 0, 1, -1 or infinity."""
        op_class, traits = self.classes[op.name].op_class, op.traits
        addend = op_class is ALLOW and traits.addend_first
        factors = traits.scales or traits.group in FACTORS
        if op.fence or factors or not (addend or op_class in (PROMOTE, FOLLOW)):
            return ()
        numbers = () if addend else op.literals
        for name in op.operands[:1] if addend else op.operands:
            known = self.numbers.get(name, ())
            scalar = addend and not self.graph.values[name].shape
            bounds = scalar or traits.group in BOUNDING or not isnan(sum(known))
            numbers = (*numbers, *(known if bounds else ()))
        return tuple(x for x in numbers if self._is_lost(x))

    def _is_lost(self, x: float) -> bool:
        return isnan(x) or (
            becomes(self.low, x) is not None and becomes(self.full, x) is None
        )

    def _kind(self, x: float) -> Kind:
        new = becomes(self.low, x)
        return "range" if new is not None and isinf(new) else "edge"

    def _spread(self, sources: Mapping[str, float], readers: "Readers") -> None:
        """Add the ops with a number that is lost, and the ops between them and readers.

        Args:
            sources: Ops with a guard, each with its number.
            readers: The ops that need it.
        """
        carried: dict[str, str] = {}  # a value with a guard, and the text about it
        for op in self.graph.ops:
            op_class = self.classes[op.name].op_class
            text = next((carried[k] for k in readers.keys(op) if k in carried), "")
            if op.name in sources:
                text = self._text(op, sources[op.name])
            if not text or not readers.concerns(op, is_source=op.name in sources):
                continue
            free = op_class in (PROMOTE, FOLLOW, ACCUMULATE) or op.name in sources
            ruled = self.classes[op.name].reason.is_rule and op_class is ALLOW
            passes_on = op.canonical in BOUNDARIES
            if free and not ruled and not (passes_on and len(op.operands) == 1):
                self.guards.setdefault(op.name, Guard(text, readers.path(op)))
                if op.name in sources and readers.kind == "edge":
                    near_one = bool(becomes(self.low, sources[op.name]))
                    self._keep_operands(op, near_one=near_one)
            passes = free or op.canonical == USER_CAST or passes_on
            if passes and not op.traits.singular:
                floats = (r for r in op.results if self.graph.values[r].is_float)
                carried.update((readers.key(name), text) for name in floats)

    def _keep_operands(self, op: Op, *, near_one: bool) -> None:
        """Add the ops that compute the guarded value of ``op``, by moves and scales.

        Args:
            op: The op with a guard.
            near_one: Whether its number is next to 1 or -1.
        """
        guard = self.guards[op.name]
        text, causes = guard.why, (op.name, *guard.causes)
        waiting = [*op.operands]
        while waiting:
            maker = self.graph.producer.get(waiting.pop())
            if maker is None or maker.name in self.guards:
                continue
            found = self.classes[maker.name]
            product = found.op_class is ALLOW and near_one and maker.accumulates
            if found.reason.is_rule or maker.fence:
                continue
            if found.op_class is PROMOTE or product:
                self.guards[maker.name] = Guard(text, causes, product)
            if found.op_class is FOLLOW or maker.traits.scales:
                waiting.extend(maker.operands)

    def _text(self, op: Op, x: float) -> str:
        word = "bound" if op.traits.group == "clamp" else "number"
        if isnan(x):
            return f"the {word} of {op.name} is only known at run time"
        new = becomes(self.low, x)
        return f"the {word} {x:.7g} of {op.name} is {new:g} in {self.low}"

    def _keep_sums(self, extreme: Collection[str]) -> None:
        """Add the sums with a number beyond the range that a softmax reads."""
        readers = Readers(self.graph, self.classes, "mask")
        for op in self.graph.ops:
            found = self.classes[op.name]
            sums = found.op_class is PROMOTE and not op.traits.scales
            adds = found.op_class is ALLOW and op.traits.addend_first
            names = op.operands[:1] if adds else op.operands
            large = next((name for name in names if name in extreme), "")
            if adds and large:  # a bias has one dimension
                sums = len(self.graph.values[large].shape) > 1
            several = len(op.operands) + len(op.literals) > 1
            ruled = found.reason.is_rule
            if sums and several and large and not ruled and readers.reaches(op):
                text = f"%{large} may be beyond the range of {self.low}"
                self.guards.setdefault(op.name, Guard(text, readers.path(op)))


# Warn of guards and exact arguments that a rule or a mark of the user rounds.


def overruled(
    graph: ProgramGraph, plan: Plan, matcher: Matcher, classes: Mapping[str, Match]
) -> Iterator[str]:
    """Yield a line for each guard, and each exact argument, that a rule rounds.

    Without the rule, the op of the guard or one on the way to its reader has another
    class, and the guard is kept.

    Args:
        graph: The program.
        plan: Its plan.
        matcher: Policy and overrides.
        classes: Class of every op.
    """
    ruled = {name: found for name, found in classes.items() if _is_ruled(found)}
    if not ruled or not matcher.policy.demand:
        return
    low = {d.op for d in plan.decisions if d.precision == plan.low}
    rounded: dict[str, str] = {}
    for name, guard in _guards(graph, plan, matcher).items():
        way = (name, *guard.causes)
        by = next((ruled[n] for n in way if n in ruled), None)
        if by is not None and name in low and not guard.is_product:
            place = _place(graph.op_by_name[name])
            reads = f"and {way[-1]} reads it; want another class, or no rule"
            line = f"{_text(by)} rounds a guard{place}: {guard.why}, {reads}"
            rounded.setdefault(guard.why, line)
    yield from rounded.values()
    for op in graph.ops:
        if op.name in ruled and op.name in low and op.traits.exact_argument:
            line = f"{_text(ruled[op.name])} rounds an argument of {op.name}"
            yield f"{line}{_place(op)}, which has to be exact; want deny, or no rule"


def _guards(graph: ProgramGraph, plan: Plan, matcher: Matcher) -> Mapping[str, Guard]:
    """Return the guards of the program without rules and marks."""
    without = Matcher(replace(matcher.policy, rules=()), full=matcher.full)
    ops = tuple(replace(op, asked="") if op.asked else op for op in graph.ops)
    plain = replace(graph, ops=ops)
    pairs = zip(graph.outputs, plan.outputs, strict=True)
    outputs = [name for name, dtype in pairs if dtype == plan.full]
    return find_guards(plain, classify(plain, without), outputs, plan.low, plan.full)


def _is_ruled(found: Match) -> bool:
    return found.reason.is_rule or found.reason is Reason.MARKER


def _text(found: Match) -> str:
    """Return the rule or the mark: ``overrides[0]``, and its text."""
    return f"{found.rule} ({found.why})"


def _place(op: Op) -> str:
    return f" ({op.source})" if op.source else ""
