"""Types of the fields of a plan, with the limits that a file has to keep.

Pydantic reads these annotations when a plan is read; declaring them does not load it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Literal

from amprewrite.dtypes import FORMATS
from amprewrite.dtypes.formats import EIGHT_BIT_FLOATS, did_you_mean
from amprewrite.policy import OpClass

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema


MAX_ITEMS = 1_000_000
"""Largest number of decisions, casts or program lines in a file.

Ten times the largest program that was planned; it bounds the memory that a file can
take.
"""

MAX_TEXT = 100_000
"""Longest text of a field, in characters: a reason names a few ops."""

MAX_COUNT = 2**63
"""Largest count of bytes or elements: one that fits into a machine word."""

FLOATS = tuple(name for name, found in FORMATS.items() if found.kind == "float")
"""Names of the floating-point dtypes."""

FOLDINGS = ("", "storage", "copy", "kernel", "dtype")
"""Ways to fold a cast, see :class:`amprewrite.plan.Cast`."""


@dataclass(frozen=True, slots=True)
class _Limits:
    """Annotation that bounds a number, or the length of a text or sequence.

    Attributes:
        least: Smallest number; None if there is none.
        most: Largest number; None if there is none.
        longest: Largest length; None if there is none.
        above: Number that a finite one has to exceed; None if there is none.
    """

    least: int | None = None
    most: int | None = None
    longest: int | None = None
    above: float | None = None

    def __get_pydantic_core_schema__(
        self, source: type, handler: "GetCoreSchemaHandler"
    ) -> "CoreSchema":
        """Return the schema by which pydantic reads ``source`` within the limits."""
        from pydantic import Field  # noqa: PLC0415  # only to read a file

        limits = Field(
            ge=self.least,
            le=self.most,
            max_length=self.longest,
            gt=self.above,
            allow_inf_nan=None if self.above is None else False,
        )
        return handler.generate_schema(Annotated[source, limits])


@dataclass(frozen=True, slots=True)
class _OneOf:
    """Annotation of a text that must be one of some words."""

    words: tuple[str, ...]

    def __get_pydantic_core_schema__(
        self, source: object, handler: "GetCoreSchemaHandler"
    ) -> "CoreSchema":
        """Return the schema by which pydantic reads the text and then checks it."""
        from pydantic_core import core_schema  # noqa: PLC0415  # only to read a file

        plain = handler(source)
        return core_schema.no_info_after_validator_function(self.check, plain)

    def check(self, found: str) -> str:
        """Return ``found``.

        Raises:
            ValueError: It is none of the words; the nearest is named.
        """
        if found in self.words:
            return found
        hint = did_you_mean(found, self.words)
        known = ", ".join(word or "''" for word in self.words)
        raise ValueError(f"found {found[:60]!r}; want {known}{hint}")


Text = Annotated[str, _Limits(longest=MAX_TEXT)]
"""Text for people, or a name."""

ClassName = Annotated[str, _OneOf(tuple(map(str, OpClass)))]
"""Name of a class of ops."""

FloatName = Annotated[str, _OneOf(FLOATS)]
"""Name of a floating dtype."""

FormatName = Annotated[str, _OneOf(("", *EIGHT_BIT_FLOATS))]
"""Name of an 8-bit format, or nothing."""

ScalingName = Literal["", "none", "current"]
"""Scale of quantised tensors; empty without an 8-bit format."""

KernelName = Literal["", "emulated", "auto", "scaled_mm"]
"""Kernel of quantised products; empty for emulated ones, as in older plans."""

LowName = Annotated[str, _OneOf(("", *FLOATS))]
"""Name of a floating dtype, or nothing."""

DtypeName = Annotated[str, _OneOf(tuple(FORMATS))]
"""Name of a dtype that can be cast."""

AccumulatorName = Annotated[str, _OneOf(("", "operand", *FLOATS))]
"""Dtype of the sums of a contraction's derivatives."""

Folding = Annotated[str, _OneOf(FOLDINGS)]
"""Way in which a cast is folded; empty if it is not."""

Mode = Literal["", "train", "eval"]
"""Mode of a torch model."""

Target = Literal["", "eager", "compiled"]
"""Way to run the result: op by op, or through a fusing compiler."""

Count = Annotated[int, _Limits(0, MAX_COUNT)]
"""Number of bytes, elements or loop iterations."""

Index = Annotated[int, _Limits(0, MAX_COUNT)]
"""Position of an operand or output."""

Error = Annotated[float, _Limits(0)]
"""A relative error."""

Seconds = Annotated[float, _Limits(above=0.0)]
"""A measured time."""

Extent = Annotated[int, _Limits(1, MAX_COUNT)]
"""Number of elements, products or multiply-adds in a timed kernel."""

MANY = _Limits(longest=MAX_ITEMS)
"""Annotation that bounds the length of a sequence read from a file."""


@dataclass(frozen=True, slots=True)
class TimedPlan:
    """A candidate of placement ``fastest``, as it was measured.

    Attributes:
        name: Name of its placement; ``full`` lowers nothing.
        seconds: Median time of a call, of a training step if parameters are trained.
        error: Relative L2 error of all float outputs together; predicted if the program
            draws random numbers.
        total_bytes: Its cost by prices, see :class:`amprewrite.plan.Cost`.
    """

    name: Text
    seconds: Seconds
    error: Error
    total_bytes: int


@dataclass(frozen=True, slots=True)
class Lowering:
    """One change of a program that eager calls run: the same in fewer, cheaper steps.

    Attributes:
        name: Name of the pass: ``no_ops``, ``repeats``, ``activations``,
            ``round_trips``, ``constants``, ``early_casts``, ``channels_last``,
            ``packed``, ``fused``, ``relu_bits``.
        ops: Names of the ops that it concerns, as in the graph of the converted model.
        what: What was done with them, as text.
        bytes: Bytes that are kept for it in addition.
    """

    name: Text
    ops: tuple[Text, ...]
    what: Text
    bytes: Count = 0


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of a plan, at the prices of its target.

    Attributes:
        casts: Casts at run time.
        cast_elements: Elements that they convert.
        cast_bytes: Bytes read and written by casts that are kernels of their own.
            Folded casts count 0; for target ``compiled``, so do casts that the compiler
            fuses into another kernel.
        op_bytes: Bytes that the ops read and write; for target ``compiled`` only bytes
            that reach memory, including the rounding of accumulators that a kernel
            returns.
        total_bytes: The sum of ``cast_bytes``, ``op_bytes`` and ``overhead_bytes``,
            which placement ``optimal`` minimises.
        overhead_bytes: Launches of casts, and lost speed of contractions in full
            precision, as the bytes that could be moved in the same time.
        lower_bound: Certified least ``total_bytes``, within a tolerance of all plans
            with no larger predicted error; None unless optimal.
    """

    casts: Count
    cast_elements: Count
    cast_bytes: Count
    op_bytes: Count
    total_bytes: int
    overhead_bytes: int = 0
    lower_bound: int | None = None

    @property
    def gap(self) -> float | None:
        """Share of ``total_bytes`` that the cheapest plan may save; None if unknown."""
        if self.lower_bound is None:
            return None
        return (self.total_bytes - self.lower_bound) / max(self.total_bytes, 1)


@dataclass(frozen=True, slots=True)
class GradientError:
    """Predicted relative L2 errors of the gradients of parameters.

    Attributes:
        error: Error of all gradients together, relative to their norm.
        worst: Largest error of one parameter's gradient, relative to its own norm.
        parameter: Name of that parameter.
    """

    error: Error
    worst: Error
    parameter: Text


# Values that a training step keeps, and the regions computed again from them.


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
