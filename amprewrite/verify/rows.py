"""Rows of a report as plain data: outputs, gradients, and ops with their ranking."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf, isinf, isnan

from amprewrite.plan import Decision


@dataclass(frozen=True, slots=True)
class OutputError:
    """The errors of one float output ``a`` against its reference ``r``.

    Attributes:
        name: Its path in the output's structure: ``past_key_values.0.1``.
        dtype: Dtype in which the converted model returns it.
        shape: Its shape; complex outputs count as pairs of reals.
        relative_l2: ``|a - r| / |r|`` in the Euclidean norm; 0 where both are zero.
        max_abs: Largest absolute difference.
        max_rel: Largest ``|a - r| / max(|r|, floor)``, the floor being the root mean
            square of ``r``: elements near zero count relative to the array's size.
        sqnr_db: Signal to quantization noise, ``-20 log10(relative_l2)``, in dB.
        cosine: Cosine of the angle between both; NaN where one of them is zero.
        argmax_agreement: Share of rows (last dimension) with the largest element at the
            same place; None for scalars and rows of one element.
        nonfinite_reference: Number of elements of ``r`` that are not finite.
        nonfinite: Number of elements of ``a`` that are not finite.
        nonfinite_new: Number of those where ``r`` is finite.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    relative_l2: float
    max_abs: float
    max_rel: float
    sqnr_db: float
    cosine: float
    argmax_agreement: float | None
    nonfinite_reference: int
    nonfinite: int
    nonfinite_new: int


@dataclass(frozen=True, slots=True)
class DiscreteError:
    """The difference of one output of integers, booleans or keys.

    Such an output has no error that grows with the roundings: an element equals the
    reference's or does not. If two choices are nearly tied, as in an argmax, a rounding
    anywhere before them swaps one for the other.

    Attributes:
        name: Its path in the output's structure.
        dtype: Dtype in which the converted model returns it.
        size: Number of elements.
        differing: Elements in which the converted model differs from the reference.
        original: Elements in which the original, in its own dtype, does.
        jitted: Elements in which the converted function compiled as one does; 0 where
            there is none.
    """

    name: str
    dtype: str
    size: int
    differing: int
    original: int
    jitted: int = 0

    @property
    def is_violation(self) -> bool:
        """Whether more elements differ than in the original itself."""
        return max(self.differing, self.jitted) > self.original

    def describe(self, reference: str) -> str:
        """Return one line: how many elements differ from those of ``reference``."""
        found = max(self.differing, self.jitted)
        share = found / self.size if self.size else 0.0
        where = " of the jitted function" if self.jitted > self.differing else ""
        return (
            f"output {self.name}{where} ({self.dtype}): {found} of {self.size} "
            f"elements ({share:.2%}) differ from {reference}, in the original itself "
            f"{self.original}"
        )


@dataclass(frozen=True, slots=True)
class GradientError:
    """The error of the gradient of one parameter or input.

    Attributes:
        name: The parameter; for an input its path in the call: ``args.0`` or
            ``kwargs.mask`` in torch, the name of the argument in JAX.
        relative_l2: ``|a - r| / |r|`` in the Euclidean norm. If ``zero`` is set, ``|a -
            r| / g``, with ``g`` the norm of a gradient of this size with the root mean
            square of all gradients together.
        cosine: Cosine of the angle between both; NaN where one of them is zero.
        zero: Whether ``r`` is zero up to rounding: in the original's own dtype the
            gradient has no correct digit. Attention, for one, does not depend on the
            bias of its keys.
        is_input: Whether it is the gradient of an input, no parameter.
        original: Error of the original's gradient in its own dtype, measured alike: the
            noise floor. None if the original was not run.
        bound: Bound on the error: ``rtol`` if given, else what the roundings of the
            plan explain, see :func:`amprewrite.verify.bounds.explained_gradient`. None
            in a report of an older version.
    """

    name: str
    relative_l2: float
    cosine: float
    zero: bool = False
    is_input: bool = False
    original: float | None = None
    bound: float | None = None

    @property
    def is_violation(self) -> bool:
        """Whether the error is beyond its bound, or not finite."""
        beyond = self.bound is not None and self.relative_l2 > self.bound
        return beyond or not self.relative_l2 < inf

    def describe(self, reference: str) -> str:
        """Return one line: the error against ``reference``, and its bound."""
        error = f"relative error {self.relative_l2:.3g}"
        if isnan(self.cosine) and not self.zero:
            error = f"zero everywhere, {error}"
        wanted = "" if self.bound is None else f"; want at most {self.bound:.3g}"
        return f"gradient of {self.name}: {error}{wanted} against {reference}"


@dataclass(frozen=True, slots=True)
class OpRow:
    """A row about one op: its names, its place, and its precision.

    Attributes:
        op: Its name in the plan.
        canonical: Its name in policies.
        native: Its name in the framework.
        path: Module path.
        source: ``file:line`` of the user's code.
        precision: Dtype that it computes in.
    """

    op: str
    canonical: str
    native: str
    path: str
    source: str
    precision: str

    @property
    def place(self) -> str:
        """Place in the model, to follow the name; empty if that is unknown."""
        place = ", ".join(part for part in (self.path, self.source) if part)
        return f" at {place}" if place else ""


def op_fields(op: OpRow | Decision) -> tuple[str, str, str, str, str, str]:
    """Return the fields of an :class:`OpRow`, from a row or a decision about the op."""
    return op.op, op.canonical, op.native, op.path, op.source, op.precision


@dataclass(frozen=True, slots=True)
class OpError(OpRow):
    """The errors of one op; relative, in the Euclidean norm, of its worst result.

    Attributes:
        own: Error that it makes itself; 0 if it rounds nothing.
        accumulated: Error of its result in the converted program.
        nonfinite: Elements that are not finite in the converted program and are in
            the reference.
        kernel: Error of the op against the original's on the same rounded operands;
            None if the original's does not run on them.
        explained: The part of it that rounding explains; see
            :mod:`amprewrite.verify.own_errors`.
        inserted: Whether it is no op of the model, but a cast that the plan inserted or
            a weight stored in another dtype.
        share: Share of its roundings in the predicted squared error of the outputs;
            None if that was not predicted.
        arrived: Largest accumulated error among the values that it reads.
        dtype: Format that stores its result; the one with the least headroom of
            several.
        largest: Largest finite magnitude of that result in the reference.
        headroom: Octaves between ``largest`` and the largest number of the format;
            negative if it overflows. None for a result that is zero.
        underflow: Share of its elements that are no zero in the reference, and are zero
            or subnormal in the format.
        unit: Largest unit roundoff of the formats that it reads, computes in and makes.
        readers: Of an inserted cast or a stored weight, the names of the ops, or other
            inserted nodes, that read it.
    """

    own: float
    accumulated: float
    nonfinite: int
    kernel: float | None = None
    explained: float = 0.0
    inserted: bool = False
    share: float | None = None
    arrived: float = 0.0
    dtype: str = ""
    largest: float = 0.0
    headroom: float | None = None
    underflow: float = 0.0
    unit: float = 0.0
    readers: tuple[str, ...] = ()

    @property
    def surprise(self) -> float:
        """Own error in unit roundoffs of the formats; about 0.7 for rounding."""
        return self.own / self.unit if self.unit else 0.0

    @property
    def overflows(self) -> bool:
        """Whether it is an inserted cast that makes values that are not finite."""
        return self.inserted and self.nonfinite > 0

    @property
    def jump(self) -> float:
        """Accumulated error minus the error that arrived: the part that the op adds.

        It is infinite for the first op with values that are not finite, and 0 for those
        after it. It is negative where an op damps the error of its operands.
        """
        return 0.0 if self.arrived == inf else self.accumulated - self.arrived

    @property
    def is_fault(self) -> bool:
        """Whether its error exceeds the part that rounding explains."""
        return self.kernel is not None and self.kernel > self.explained

    @property
    def excess(self) -> float:
        """Ratio of a fault's error to the part that rounding explains; 0 for others."""
        if self.kernel is None or not self.is_fault:
            return 0.0
        return self.kernel / self.explained if self.explained else inf

    def __str__(self) -> str:
        """Return one line: the op, its errors and its place."""
        share = "" if self.share is None else f"{self.share:.0%} of the error, "
        return (
            f"{self.op} ({self.native}, {self.precision}) {share}own error "
            f"{self.own:.2g}, accumulated {self.accumulated:.2g}{self.place}"
        )

    @property
    def fault(self) -> str:
        """A line about its error against the op, or the value, that it replaces."""
        stands_for = "the value handed on" if self.inserted else "the original's op"
        return (
            f"{'inserted ' if self.inserted else ''}op {self.op} ({self.native}, "
            f"{self.precision}){self.place}: differs from {stands_for} by "
            f"{self.kernel or 0.0:.2g} on the same operands; rounding explains "
            f"{self.explained:.2g}"
        )


def worst(ops: Iterable[OpError], count: int) -> tuple[OpError, ...]:
    """Return the ops that matter most, in program order among equals.

    Faults come first, by their excess over rounding. Then ops that made values that are
    not finite; then the ops by their share of the predicted error of the outputs,
    because an op with a large error of its own may not affect them. Without shares,
    their own errors count. A right inserted cast is never one: its rounding belongs to
    the ops that read it.
    """

    def rank(op: OpError) -> tuple[float, ...]:
        own = float("-inf") if isnan(op.own) else -op.own
        return -op.excess, own if isinf(own) else 0.0, -(op.share or 0.0), own

    counted = (op for op in ops if op.is_fault or not op.inserted)
    return tuple(sorted(counted, key=rank)[:count])
