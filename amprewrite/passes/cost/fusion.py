"""Values that a fusing compiler writes to memory, their dtypes and their readers.

It calls libraries for contractions and unknown ops, and generates the kernels of all
others. Values between generated kernels stay in registers, or are kept in any dtype:
XLA for CPUs keeps a low value with full readers only as a full one. In memory are, of
their results, the operands of libraries, loops and branches, and outputs: in each dtype
that one of them wants, written by the kernel itself; and if another kernel reads the
value too, in its stored dtype.

A cast of a generated kernel's result, or for a generated kernel, therefore moves
nothing. Any other cast is a pass of its own: that of an argument, or of a library's
result, for a library. Where a library returns its accumulator
(:mod:`amprewrite.plan.hardware.kernels`), its result is in memory in full, whatever it
is rounded to: kernels round it as they read it, and for a library it is rounded in a
pass of its own.

Measured in the programs that XLA compiles for CPUs by ``benchmarks.jax_compiled``.
"""

from collections.abc import Iterable, Mapping
from functools import cached_property

from amprewrite.ir import REGION_BOUNDARIES, Op, ProgramGraph
from amprewrite.passes.cost.cost_model import CostModel
from amprewrite.passes.cost.moved_bytes import is_view
from amprewrite.policy import Reason
from amprewrite.policy.match import Match
from amprewrite.policy.model import ALLOW, KEEP

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
