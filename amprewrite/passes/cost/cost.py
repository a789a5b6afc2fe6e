"""The cost of a plan in bytes, by one function for every placement."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from amprewrite.dtypes import itemsize
from amprewrite.ir import Op
from amprewrite.passes.analysis.classify import USER_CAST
from amprewrite.passes.analysis.context import Placement, Situation
from amprewrite.passes.cost.cost_model import (
    EAGER,
    CostModel,
    Fusion,
    is_view,
    kernel_overhead,
    lost_speed,
    low_overhead,
    read_elements,
)
from amprewrite.plan import Cast, Cost
from amprewrite.policy import OpClass

FREE = (OpClass.ALLOW, OpClass.ACCUMULATE, OpClass.PROMOTE, OpClass.FOLLOW)
"""Classes whose ops may run low or full."""

Errors = Mapping[str | tuple[str, str], float]
"""Extra cost of low precision, in bytes, by what is low.

The key is the name of a value that is stored low, or (value, op) for a value that is
stored full and that this op reads low: what is stored low was rounded before. How a
weight is stored and moved about follows from who reads it, so that only reading it
counts, however it is stored.
"""


@dataclass(frozen=True)
class Objective:
    """What placement ``optimal`` minimises, and all placements are priced by.

    Attributes:
        model: Prices of the target.
        errors: Extra cost of what is low, such as a measured sensitivity times a
            multiplier; rounded to whole bytes.
    """

    model: CostModel = EAGER
    errors: Errors = field(default_factory=dict[str | tuple[str, str], float])

    def error(self, *keys: str | tuple[str, str]) -> int:
        """Return the extra cost of everything that ``keys`` name being low."""
        if not self.errors:
            return 0
        return sum(round(self.errors.get(key, 0)) for key in keys)


def counted_errors(situation: Situation, op: Op) -> tuple[bool, tuple[str, ...]]:
    """Return whether ``op`` rounds what it makes, and what it may round by reading."""
    weights = situation.weights
    moves = bool(op.results) and all(name in weights for name in op.results)
    free = situation.classes[op.name].op_class in FREE and not op.reads
    as_stored = moves or op.canonical == USER_CAST or op.mixing == "any"
    names = list(dict.fromkeys(op.operands))
    if op.mixing == "lead":  # the others may be full or low beside the first
        full = situation.policy.full
        names = [n for n in names if situation.graph.is_dtype(n, full)][:1]
    counted = tuple(name for name in names if not (as_stored and name in weights))
    return free and not moves, counted


def speed_cost(situation: Situation, op: Op, fusion: Fusion) -> tuple[int, int]:
    """Return what an op costs beside its bytes where it runs full, and where low.

    Both are 0 or more, as a cut wants its costs, and count every turn of a loop.
    """
    graph, model = situation.graph, fusion.model
    op_class = situation.classes[op.name].op_class
    full = low = 0
    if op_class is OpClass.ALLOW:
        lost = lost_speed(graph, op, model)
        full, low = max(lost, 0), max(-lost, 0)
    elif op.name in fusion.kernels:
        moves = all(name in situation.weights for name in op.results)
        low = 0 if moves else kernel_overhead(graph, op, model)
    elif op_class in (OpClass.PROMOTE, OpClass.ACCUMULATE):
        low = low_overhead(graph, op, model)
    return op.trips * full, op.trips * low


def plan_cost(
    situation: Situation,
    placement: Placement,
    casts: Iterable[Cast],
    objective: Objective | None = None,
) -> Cost:
    """Return what ``casts`` and ops cost.

    An op reads its operands and writes its results once; a view moves nothing. A
    symbolic extent counts as one, so that the figure is a lower bound there.

    Args:
        situation: What was known before placement.
        placement: The placement.
        casts: Its casts.
        objective: What things cost; None for the prices of eager execution.
    """
    return _Pricing(situation, placement, objective or Objective()).cost(casts)


class _Pricing:
    def __init__(
        self, situation: Situation, placement: Placement, objective: Objective
    ) -> None:
        self.at, self.placement, self.objective = situation, placement, objective
        self.graph, self.values = situation.graph, situation.graph.values
        self.low, self.full = situation.policy.low, situation.policy.full
        self.fusion = Fusion(self.graph, situation.classes, objective.model)

    def cost(self, casts: Iterable[Cast]) -> Cost:
        run = [cast for cast in casts if not cast.folded]
        paid = [c for c in run if not self.fusion.absorbs(c.value, c.consumers)]
        cast_bytes = sum(cast.bytes for cast in paid)
        op_bytes = sum(op.trips * self._op_bytes(op) for op in self.graph.ops)
        overhead = sum(cast.trips for cast in paid) * self.objective.model.launch
        overhead += sum(map(self._op_overhead, self.graph.ops)) + self._stored_errors()
        return Cost(
            casts=len(run),
            cast_elements=sum(self.values[c.value].elements * c.trips for c in run),
            cast_bytes=cast_bytes,
            op_bytes=op_bytes,
            total_bytes=cast_bytes + op_bytes + overhead,
            overhead_bytes=overhead,
        )

    def _op_bytes(self, op: Op) -> int:
        """A generated kernel reads what is stored, and casts it in registers."""
        graph, placed = self.graph, self.placement.ops[op.name]
        if is_view(graph, op):
            return 0
        inside, moved = op.name in self.fusion.kernels, 0
        for index, name in enumerate(op.operands):
            if self.fusion.in_memory(name):
                wanted = placed.operands[index]
                read = self.placement.stored[name] if inside else wanted
                moved += read_elements(graph, op, index) * itemsize(read)
        for name, made in zip(op.results, placed.results, strict=True):
            if self.fusion.in_memory(name):
                moved += self.values[name].elements * itemsize(made)
        return moved

    def _op_overhead(self, op: Op) -> int:
        placed, cost = self.placement.ops[op.name], 0
        full, low = speed_cost(self.at, op, self.fusion)
        cost += full if placed.precision == self.full else 0
        cost += low if placed.precision == self.low else 0
        if self.objective.errors:
            _, names = counted_errors(self.at, op)
            pairs = zip(reversed(op.operands), reversed(placed.operands), strict=True)
            read = dict(pairs)  # where an op reads a value twice, the first counts
            low = (
                name
                for name in names
                if self._is_low(name, read[name]) and not self._was_rounded(name)
            )
            cost += self.objective.error(*((name, op.name) for name in low))
        return cost

    def _was_rounded(self, name: str) -> bool:
        return name not in self.at.weights and self.placement.stored[name] == self.low

    def _stored_errors(self) -> int:
        stored, weights = self.placement.stored.items(), self.at.weights
        low = (n for n, d in stored if self._is_low(n, d) and n not in weights)
        return self.objective.error(*low) if self.objective.errors else 0

    def _is_low(self, name: str, dtype: str) -> bool:
        return dtype == self.low and self.graph.is_dtype(name, self.full)
