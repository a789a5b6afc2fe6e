"""The cost of a plan in bytes, computed by one function for all placements."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from amprewrite.dtypes import itemsize
from amprewrite.ir import Op
from amprewrite.passes.analysis.classify import USER_CAST
from amprewrite.passes.analysis.context import Placement, Situation
from amprewrite.passes.cost.cost_model import (
    EAGER,
    CostModel,
    kernel_overhead,
    lost_speed,
    low_overhead,
)
from amprewrite.passes.cost.fusion import Fusion
from amprewrite.passes.cost.moved_bytes import is_view, read_elements
from amprewrite.plan import OUTPUT, Cast, Cost
from amprewrite.plan.sensitivity import Limit
from amprewrite.plan.uses import output_sources
from amprewrite.policy.model import ACCUMULATE, ALLOW, FOLLOW, PROMOTE

FREE = (ALLOW, ACCUMULATE, PROMOTE, FOLLOW)
"""Classes of ops that may run low or full."""


@dataclass(frozen=True)
class Objective:
    """The objective of placement ``optimal``; its prices are those of all placements.

    Attributes:
        model: Prices of the target, of which the least is wanted.
        limits: Limits on the errors of plans. The key of a rounding is the name of a
            value that is stored low, or (value, op) for a value that is stored full and
            read low by that op: a value stored low was rounded before. Storage and
            moves of a weight follow from its readers, so that only reading it counts.
    """

    model: CostModel = EAGER
    limits: tuple[Limit, ...] = ()


def counted_errors(situation: Situation, op: Op) -> tuple[bool, tuple[str, ...]]:
    """Return whether ``op`` rounds its results, and the operands that it may round."""
    weights = situation.weights
    moves = bool(op.results) and all(name in weights for name in op.results)
    free = situation.classes[op.name].op_class in FREE and not op.reads
    as_stored = moves or op.canonical == USER_CAST or op.operand_rule == "any"
    names = list(dict.fromkeys(op.operands))
    if op.operand_rule == "lead":  # the others may be full or low beside the first
        full = situation.policy.full
        names = [n for n in names if situation.graph.values[n].dtype == full][:1]
    counted = tuple(name for name in names if not (as_stored and name in weights))
    return free and not moves, counted


def speed_cost(situation: Situation, op: Op, fusion: Fusion) -> tuple[int, int]:
    """Return the costs of an op in full and in low, beside its bytes.

    Both are 0 or more, and count every iteration of a loop.
    """
    graph, model = situation.graph, fusion.model
    op_class = situation.classes[op.name].op_class
    full = low = 0
    if op_class is ALLOW:
        lost = lost_speed(graph, op, model)
        full, low = max(lost, 0), max(-lost, 0)
    elif op.name in fusion.kernels:
        moves = all(name in situation.weights for name in op.results)
        low = 0 if moves else kernel_overhead(graph, op, model)
    elif op_class in (PROMOTE, ACCUMULATE):
        low = low_overhead(graph, op, model)
    return op.trips * full, op.trips * low


def plan_cost(
    situation: Situation,
    placement: Placement,
    casts: Iterable[Cast],
    objective: Objective | None = None,
    fusion: Fusion | None = None,
) -> Cost:
    """Return the cost of the casts and ops of a placement.

    An op reads its operands and writes its results once; a view moves nothing. A
    symbolic extent counts as one, so that the figure is a lower bound there.

    Args:
        situation: The facts before placement.
        placement: The placement.
        casts: Its casts.
        objective: Prices; None for the prices of eager execution.
        fusion: The kernels of the program at these prices; None to find them.
    """
    asked = objective or Objective()
    fused = fusion or Fusion(situation.graph, situation.classes, asked.model)
    return _Pricing(situation, placement, asked, fused).cost(casts)


def priced_casts(fusion: Fusion, casts: Iterable[Cast]) -> tuple[Cast, ...]:
    """Return ``casts`` with the bytes that each moves in a kernel of its own.

    A cast fused into another kernel moves none.
    """
    return tuple(
        cast if _is_paid(fusion, cast) else replace(cast, bytes=0) for cast in casts
    )


def _is_paid(fusion: Fusion, cast: Cast) -> bool:
    """Return whether ``cast`` is a kernel of its own at run time."""
    return not (cast.folded or fusion.absorbs(cast.value, cast.consumers))


class _Pricing:
    def __init__(
        self,
        situation: Situation,
        placement: Placement,
        objective: Objective,
        fusion: Fusion,
    ) -> None:
        self.at, self.placement, self.objective = situation, placement, objective
        self.graph, self.values = situation.graph, situation.graph.values
        self.low, self.full = situation.policy.low, situation.policy.full
        self.fusion = fusion

    def cost(self, casts: Iterable[Cast]) -> Cost:
        run = [cast for cast in casts if not cast.folded]
        paid = [cast for cast in run if _is_paid(self.fusion, cast)]
        cast_bytes = sum(cast.bytes for cast in paid)
        op_bytes = sum(op.trips * self._op_bytes(op) for op in self.graph.ops)
        op_bytes += self._version_bytes(run)
        overhead = sum(cast.trips for cast in paid) * self.objective.model.launch
        overhead += sum(map(self._op_overhead, self.graph.ops))
        return Cost(
            casts=len(run),
            cast_elements=sum(self.values[c.value].elements * c.trips for c in run),
            cast_bytes=cast_bytes,
            op_bytes=op_bytes,
            total_bytes=cast_bytes + op_bytes + overhead,
            overhead_bytes=overhead,
        )

    def _op_bytes(self, op: Op) -> int:
        graph, placed, fusion = self.graph, self.placement.ops[op.name], self.fusion
        if is_view(graph, op):
            return 0
        moved = 0
        for index in range(len(op.operands)):
            if fusion.is_read(op, index):
                size = itemsize(self._read(op, index))
                moved += read_elements(graph, op, index) * size
        for name, made in zip(op.results, placed.results, strict=True):
            elements = self.values[name].elements
            if fusion.hands_sums(op) and self.values[name].dtype == self.full:
                moved += elements * itemsize(self.full)
                if made == self.low and fusion.is_rounded_alone(op):
                    moved += elements * (itemsize(self.full) + itemsize(self.low))
            elif not fusion.is_versioned(name):
                moved += elements * itemsize(made)
        return moved

    def _read(self, op: Op, index: int) -> str:
        """Return an operand's dtype in memory; kernels cast in registers."""
        name = op.operands[index]
        if op.name not in self.fusion.kernels:
            return self.placement.ops[op.name].operands[index]
        full = self.fusion.is_sum(name) and self.values[name].dtype == self.full
        return self.full if full else self.placement.stored[name]

    def _version_bytes(self, run: Iterable[Cast]) -> int:
        """Return the bytes that kernels write: each value once in each wanted dtype."""
        if not self.fusion.kernels:
            return 0
        wanted = {
            (self.fusion.origin(op.operands[index]), self._read(op, index))
            for op in self.graph.ops
            for index in range(len(op.operands))
            if self.fusion.wants(op, index)
        }
        given = {i: c.to_dtype for c in run for op, i in c.uses if op == OUTPUT}
        wanted |= {
            (self.fusion.origin(name), given.get(index, self.placement.stored[name]))
            for index, name in enumerate(output_sources(self.graph))
            if self.fusion.is_versioned(name)
        }
        return sum(self.fusion.written(name, itemsize(d)) for name, d in wanted)

    def _op_overhead(self, op: Op) -> int:
        placed, cost = self.placement.ops[op.name], 0
        full, low = speed_cost(self.at, op, self.fusion)
        cost += full if placed.precision == self.full else 0
        cost += low if placed.precision == self.low else 0
        return cost
