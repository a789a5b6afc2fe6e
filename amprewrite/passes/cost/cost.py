"""The cost of a plan in bytes, computed by one function for all placements."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from amprewrite.dtypes import itemsize
from amprewrite.ir import REGION_BOUNDARIES, Op, ProgramGraph
from amprewrite.passes.analysis.classify import USER_CAST
from amprewrite.passes.analysis.context import Placement, Situation
from amprewrite.passes.cost.cost_model import (
    EAGER,
    CostModel,
    is_view,
    kernel_overhead,
    lost_speed,
    low_overhead,
    read_elements,
)
from amprewrite.plan import OUTPUT, Cast, Cost, Decision
from amprewrite.plan.sensitivity import Limit, factors_of
from amprewrite.plan.uses import output_sources
from amprewrite.policy import Reason
from amprewrite.policy.match import Match
from amprewrite.policy.model import ACCUMULATE, ALLOW, FOLLOW, KEEP, PROMOTE

# Values that a fusing compiler writes to memory, their dtypes and their readers.
#
# It calls libraries for contractions and unknown ops, and generates the kernels of all
# others. Values between generated kernels stay in registers, or are kept in any dtype:
# XLA for CPUs keeps a low value with full readers only as a full one. In memory are, of
# their results, the operands of libraries, loops and branches, and outputs: in each
# dtype that one of them wants, written by the kernel itself; and if another kernel
# reads the value too, in its stored dtype.
#
# A cast of a generated kernel's result, or for a generated kernel, therefore moves
# nothing. Any other cast is a pass of its own: that of an argument, or of a library's
# result, for a library. Where a library returns its accumulator
# (:mod:`amprewrite.plan.hardware`), its result is in memory in full, whatever
# it is rounded to: kernels round it as they read it, and for a library it is rounded in
# a pass of its own.
#
# Measured in the programs that XLA compiles for CPUs by ``benchmarks.jax_compiled``.

KEPT = frozenset(
    (
        *(Reason.OPS, Reason.GROUP, Reason.DTYPE, Reason.DTYPE_ARGUMENT),
        Reason.USER_CAST,
    )
)
"""Reasons of keep ops with generated kernels: comparisons, numbers, integers, casts.

An op that the policy does not name may call anything, and a fence hides its kernel.
"""

_Use = tuple[str, int]
"""Use of a value: the name of the op that reads it, and the operand index."""


class Fusion:
    """Values kept out of memory by a target; none if it runs op by op.

    Attributes:
        graph: The program.
        model: The prices.
        kernels: Names of the ops with generated kernels.
    """

    def __init__(
        self, graph: ProgramGraph, classes: Mapping[str, Match], model: CostModel
    ) -> None:
        """Find the ops with kernels that the target generates.

        Args:
            graph: The program.
            classes: Class of every op.
            model: The prices.
        """
        self.graph, self.model, self._classes = graph, model, classes
        self.kernels = frozenset(
            op.name
            for op in (graph.ops if model.fused else ())
            if self._is_generated(op)
        )

    def _is_generated(self, op: Op) -> bool:
        if op.fence or op.canonical in REGION_BOUNDARIES or is_view(self.graph, op):
            return False
        found = self._classes[op.name]
        if found.op_class is KEEP:
            contracts = op.contracted is not None or op.accumulates
            return found.reason in KEPT and not contracts
        return found.op_class in self.model.fused

    def makes(self, name: str) -> bool:
        """Return whether a generated kernel makes value ``name``, or its base."""
        if not self.kernels:
            return False
        maker = self.graph.producer.get(self.origin(name))
        return maker is not None and maker.name in self.kernels

    def absorbs(self, name: str, readers: Iterable[str]) -> bool:
        """Return whether a cast of ``name`` for ``readers`` is fused into kernels."""
        if not self.kernels:
            return False
        if self.makes(name):
            return True
        found = list(readers)
        return bool(found) and all(reader in self.kernels for reader in found)

    def is_versioned(self, name: str) -> bool:
        """Return whether a kernel writes ``name`` once in each wanted dtype.

        A storage written in place has one dtype.
        """
        return name in self._versioned

    @cached_property
    def _versioned(self) -> frozenset[str]:
        graph, values = self.graph, self.graph.values
        made = (name for op in graph.ops for name in op.results if self.makes(name))
        return frozenset(n for n in made if values[n].alias not in graph.written)

    def is_read(self, op: Op, index: int) -> bool:
        """Return whether ``op`` reads its operand from memory.

        Of several generated kernels, only the first one does.
        """
        return op.name not in self.kernels or (op.name, index) in self._kernel_reads

    def wants(self, op: Op, index: int) -> bool:
        """Return whether ``op`` needs its versioned operand in memory.

        A view does not; the readers of the view do.
        """
        name = op.operands[index]
        if not self.is_versioned(name) or index in op.mutates:
            return False
        return self.is_read(op, index) and not self._shares(op)

    def written(self, name: str, size: int) -> int:
        """Return the bytes that a kernel writes of a value of ``size`` bytes each."""
        maker = self.graph.producer[name]
        return maker.trips * self.graph.values[name].elements * size

    def hands_sums(self, op: Op) -> bool:
        """Return whether the kernel of ``op`` writes full sums, to be rounded later."""
        if not self.kernels or not (self.model.kernels.accumulators and op.accumulates):
            return False
        allowed = self._classes[op.name].op_class is ALLOW
        return allowed and len(op.results) == 1

    def is_sum(self, name: str) -> bool:
        """Return whether the memory of ``name`` holds an accumulator."""
        maker = self.graph.producer.get(self.origin(name)) if self.kernels else None
        return maker is not None and self.hands_sums(maker)

    def is_rounded_alone(self, op: Op) -> bool:
        """Return whether the sums of ``op`` are rounded in a pass of their own."""
        return self.hands_sums(op) and op.results[0] in self._outside

    def origin(self, name: str) -> str:
        """Return the base that ``name`` is a view of; itself without one."""
        return self._origins.get(name, name)

    @cached_property
    def _origins(self) -> dict[str, str]:
        """The base of each value that shares the storage of another."""
        found: dict[str, str] = {}
        views = (op for op in self.graph.ops if self._shares(op))
        for op in views:
            for name in op.results:
                storage = self.graph.storage(name)
                shared = (n for n in op.operands if self.graph.storage(n) == storage)
                source = next(shared)
                found[name] = found.get(source, source)
        return found

    @cached_property
    def _outside(self) -> frozenset[str]:
        """Values read by a library, a loop or a branch, and outputs."""
        read = {
            self.origin(name)
            for op in self.graph.ops
            if op.name not in self.kernels and not self._shares(op)
            for name in op.operands
        }
        return frozenset(read.union(map(self.origin, self.graph.outputs)))

    def _shares(self, op: Op) -> bool:
        """Return whether ``op`` is a view, region boundaries excluded."""
        return op.canonical not in REGION_BOUNDARIES and is_view(self.graph, op)

    @cached_property
    def _kernel_reads(self) -> frozenset[_Use]:
        """The uses by which kernels read from memory: one for each value."""
        found: dict[str, _Use] = {}
        origins, outside, versioned = self._origins, self._outside, self._versioned
        for op in self.graph.ops:
            if op.name not in self.kernels:
                continue
            for index, name in enumerate(op.operands):
                origin = origins.get(name, name)
                if origin in outside or name not in versioned:
                    found.setdefault(origin, (op.name, index))
        return frozenset(found.values())


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


def saved_bytes(graph: ProgramGraph, op: Op) -> int:
    """Return the bytes that a contraction saves by factors of 8 bits, not of 16.

    Each factor is read in half the bytes. It ranks contractions against each other and
    against casts; an emulated product saves nothing.
    """
    return op.trips * sum(graph.values[name].elements for name in factors_of(op))


def saved_by(graph: ProgramGraph, decisions: Mapping[str, Decision]) -> int:
    """Return the bytes that the contractions of a plan save by 8 bits."""
    quantised = (op for op in graph.ops if decisions[op.name].quantises)
    return sum(saved_bytes(graph, op) for op in quantised)
