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

from collections.abc import Collection, Iterable, Mapping
from math import isinf, isnan

from amprewrite.dtypes import format_of
from amprewrite.dtypes.fits import becomes
from amprewrite.ir import Op, ProgramGraph
from amprewrite.passes.analysis.classify import USER_CAST
from amprewrite.passes.analysis.context import Guard
from amprewrite.passes.analysis.weights_and_literals import extreme_values, moved_inputs
from amprewrite.passes.guards.known_numbers import known_numbers
from amprewrite.passes.guards.readers import KINDS, Kind, Readers
from amprewrite.policy.match import Match
from amprewrite.policy.model import ACCUMULATE, ALLOW, FOLLOW, PROMOTE

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
