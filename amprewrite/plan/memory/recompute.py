"""Values that a training step keeps, and the regions computed again from them."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated

from amprewrite.plan.fields import MANY, Count, Text


@dataclass(frozen=True, slots=True)
class Kept:
    """A value in one dtype, which stays alive until the backward pass has read it.

    Attributes:
        value: Name of the value.
        dtype: Dtype in which it is kept: its own, or that of a cast of it.
        bytes: Its size, in all iterations of a loop together; 0 if it is alive anyway,
            such as a parameter or an input.
    """

    value: Text
    dtype: Text
    bytes: Count = 0


@dataclass(frozen=True, slots=True)
class RecomputedRegion:
    """Ops that run again in the backward pass, which keeps their operands alone.

    They contract nothing, draw nothing and write nothing in place, so that they give
    the same bits again.

    Attributes:
        ops: Names of the ops, in program order.
        roots: The kept values from which they are computed, each with its dtype.
    """

    ops: tuple[Text, ...]
    roots: tuple[tuple[Text, Text], ...]


@dataclass(frozen=True)
class Recompute:
    """The memory of a training step; empty for a plan that recomputes nothing.

    Attributes:
        kept: All values that the derivatives of a program, or its regions, read.
        regions: The regions, in program order.
        bytes_before: Bytes that the derivatives read, each value in its own dtype, if
            nothing is computed again; parameters and inputs not counted.
        moved_bytes: Bytes that the regions read and write, to be computed again.
    """

    kept: Annotated[tuple[Kept, ...], MANY] = ()
    regions: Annotated[tuple[RecomputedRegion, ...], MANY] = ()
    bytes_before: Count = 0
    moved_bytes: Count = 0

    def __bool__(self) -> bool:
        """Return whether anything is computed again."""
        return bool(self.regions)

    def numbered(self, prefix: str) -> "Recompute":
        """Return the same with ``prefix`` before every name of an op or a value."""
        return replace(
            self,
            kept=tuple(replace(kept, value=prefix + kept.value) for kept in self.kept),
            regions=tuple(
                RecomputedRegion(
                    tuple(prefix + op for op in region.ops),
                    tuple((prefix + name, dtype) for name, dtype in region.roots),
                )
                for region in self.regions
            ),
        )

    @classmethod
    def joined(cls, parts: Iterable["Recompute"]) -> "Recompute":
        """Return the memory of several programs as one."""
        found = list(parts)
        return cls(
            tuple(kept for part in found for kept in part.kept),
            tuple(region for part in found for region in part.regions),
            sum(part.bytes_before for part in found),
            sum(part.moved_bytes for part in found),
        )

    @property
    def bytes_kept(self) -> int:
        """Bytes of all kept values."""
        return sum(kept.bytes for kept in self.kept)

    @cached_property
    def ops(self) -> frozenset[str]:
        """Names of the ops of all regions."""
        return frozenset(op for region in self.regions for op in region.ops)
