"""Rows of a report on outputs and gradients, as plain data."""

from dataclasses import dataclass
from math import inf, isnan


@dataclass(frozen=True, slots=True)
class OutputError:
    """The errors of one float output; see :class:`amprewrite.verify.metrics.Errors`.

    Attributes:
        name: Its path in the output's structure: ``past_key_values.0.1``.
        dtype: Dtype in which the converted model returns it.
        shape: Its shape; complex outputs count as pairs of reals.
        relative_l2: ``|a - r| / |r|`` in the Euclidean norm.
        max_abs: Largest absolute difference.
        max_rel: Largest relative difference, with the root mean square as floor.
        sqnr_db: Signal to quantization noise, in dB.
        cosine: Cosine of the angle between both.
        argmax_agreement: Share of rows with the largest element at the same place.
        nonfinite_reference: Elements of the reference that are not finite.
        nonfinite: Elements of the converted output that are not finite.
        nonfinite_new: Those that are finite in the reference.
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
