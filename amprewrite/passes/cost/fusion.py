"""Which values a fusing compiler puts in memory, in which dtypes, and who reads them.

It calls libraries for contractions and for what it does not know, and generates the
kernels of all else. What kernels hand each other stays in registers, or is kept as the
compiler likes: XLA for CPUs keeps a low value that all read in full as a full one. In
memory is, of what they make, what a library reads, what a loop or a branch takes in,
and outputs: in each dtype that one of them wants, written by the kernel itself, and
where another kernel reads it too, as it is stored.

A cast of what a kernel makes, or for a kernel, therefore moves nothing. Any other cast
is a pass of its own: that of an argument or of a library's result for a library. Where
a library hands over its accumulator (:mod:`amprewrite.plan.hardware.kernels`), its
result is in memory in full, whatever it is rounded to: kernels round it as they read
it, and for a library it is rounded in a pass of its own.

Measured in the programs that XLA compiles for CPUs by ``benchmarks.jax_compiled``.
"""

from collections.abc import Iterable, Mapping
from functools import cached_property

from amprewrite.ir import REGION_BOUNDARIES, Op, ProgramGraph
from amprewrite.passes.cost.cost_model import CostModel, is_view
from amprewrite.policy import OpClass, Reason
from amprewrite.policy.match import Match

KEPT = frozenset(
    (
        *(Reason.OPS, Reason.GROUP, Reason.DTYPE, Reason.DTYPE_ARGUMENT),
        Reason.USER_CAST,
    )
)
"""Why ops are kept whose kernels are generated: comparisons, numbers, integers, casts.

What the policy does not name may be a call of anything, and a fence hides what it is.
"""

_Use = tuple[str, int]
"""A use of a value: the name of the op that reads it, and as which operand."""


class Fusion:
    """What a target keeps out of memory; nothing, if it runs op by op.

    Attributes:
        graph: The program.
        model: The prices.
        kernels: Names of the ops whose kernels the target generates.
    """

    def __init__(
        self, graph: ProgramGraph, classes: Mapping[str, Match], model: CostModel
    ) -> None:
        """Take note of the ops whose kernels the target generates.

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
        if found.op_class is OpClass.KEEP:
            contracts = op.contracted is not None or op.accumulates
            return found.reason in KEPT and not contracts
        return found.op_class in self.model.fused

    def makes(self, name: str) -> bool:
        """Return whether a generated kernel makes value ``name``, or what it views."""
        if not self.kernels:
            return False
        maker = self.graph.producer.get(self.origin(name))
        return maker is not None and maker.name in self.kernels

    def absorbs(self, name: str, readers: Iterable[str]) -> bool:
        """Return whether one cast of ``name`` for ``readers`` is done in kernels."""
        if not self.kernels:
            return False
        if self.makes(name):
            return True
        found = list(readers)
        return bool(found) and all(reader in self.kernels for reader in found)

    def is_versioned(self, name: str) -> bool:
        """Return whether a kernel writes ``name`` once in each dtype that is wanted.

        What is written in place has one dtype.
        """
        return self.makes(name) and self.graph.storage(name) not in self.graph.written

    def is_read(self, op: Op, index: int) -> bool:
        """Return whether ``op`` reads its operand from memory, and nobody did for it.

        The first kernel reads for the others.
        """
        return op.name not in self.kernels or (op.name, index) in self._kernel_reads

    def wants(self, op: Op, index: int) -> bool:
        """Return whether ``op`` has a versioned operand in memory.

        What only shares its storage does not: those who read that do.
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
        """Return whether the kernel of ``op`` writes its sums, to be rounded later."""
        if not self.kernels or not (self.model.kernels.accumulators and op.accumulates):
            return False
        allowed = self._classes[op.name].op_class is OpClass.ALLOW
        return allowed and len(op.results) == 1

    def is_sum(self, name: str) -> bool:
        """Return whether what is in memory of ``name`` is an accumulator."""
        maker = self.graph.producer.get(self.origin(name)) if self.kernels else None
        return maker is not None and self.hands_sums(maker)

    def is_rounded_alone(self, op: Op) -> bool:
        """Return whether the sums of ``op`` are rounded in a pass of their own."""
        return self.hands_sums(op) and op.results[0] in self._outside

    def origin(self, name: str) -> str:
        """Return the value that ``name`` is a view of; itself if it is none."""
        return self._origins.get(name, name)

    @cached_property
    def _origins(self) -> dict[str, str]:
        """For values that share the storage of another, that one."""
        found: dict[str, str] = {}
        for op in self.graph.ops:
            for name in op.results if self._shares(op) else ():
                storage = self.graph.storage(name)
                shared = (n for n in op.operands if self.graph.storage(n) == storage)
                source = next(shared)
                found[name] = found.get(source, source)
        return found

    @cached_property
    def _outside(self) -> frozenset[str]:
        """Values of which a library, a loop or a branch reads, or that are outputs."""
        read = {
            self.origin(name)
            for op in self.graph.ops
            if op.name not in self.kernels and not self._shares(op)
            for name in op.operands
        }
        return frozenset(read.union(map(self.origin, self.graph.outputs)))

    def _shares(self, op: Op) -> bool:
        """Whether ``op`` is a view; what passes into a body is read for it."""
        return op.canonical not in REGION_BOUNDARIES and is_view(self.graph, op)

    @cached_property
    def _kernel_reads(self) -> frozenset[_Use]:
        """The uses by which kernels read from memory: one for each value."""
        found: dict[str, _Use] = {}
        for op in self.graph.ops:
            inside = op.name in self.kernels
            for index, name in enumerate(op.operands if inside else ()):
                origin = self.origin(name)
                if origin in self._outside or not self.is_versioned(name):
                    found.setdefault(origin, (op.name, index))
        return frozenset(found.values())
