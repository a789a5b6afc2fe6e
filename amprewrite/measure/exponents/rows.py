"""Exponents of the numbers of one tensor: plain data."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite, ldexp, nan
from sys import float_info
from typing import Literal, get_args

from amprewrite.measure.exponents.shares import Shares, shares_of

Kind = Literal["weight", "activation", "weight gradient", "activation gradient"]

KINDS: tuple[Kind, ...] = get_args(Kind)
"""Kinds of tensors, in the order of a histogram."""


@dataclass(frozen=True)
class Exponents:
    """Exponents of the numbers of one tensor.

    Attributes:
        name: Name of a parameter; or of the function that made the tensor, numbered.
        kind: Weight, activation, or the gradient of one.
        path: Path of the module in torch, source line in JAX; empty if unknown.
        counts: Numbers by exponent ``e``, those with ``2**e <= abs(x) < 2**(e + 1)``.
        zeros: Numbers that are zero.
        nonfinite: Numbers that are infinite or NaN.
        largest: Largest absolute value that is finite; 0 if there is none, NaN if it is
            not known: then it is below ``2**(e + 1)`` for the largest exponent.
    """

    name: str
    kind: str
    path: str
    counts: Mapping[int, int]
    zeros: int
    nonfinite: int
    largest: float = nan

    @property
    def size(self) -> int:
        """Count of all numbers."""
        return sum(self.counts.values()) + self.zeros + self.nonfinite

    @property
    def bound(self) -> float:
        """The largest absolute value, or the bound on it if it is not known."""
        if isfinite(self.largest):
            return self.largest
        if not self.counts:
            return 0.0
        above = max(self.counts) + 1
        return ldexp(1.0, above) if above < float_info.max_exp else float_info.max

    def share_below(self, format: str, scale: float = 1.0) -> Shares:  # noqa: A002  # the word of the field
        """Return the shares of numbers that a format loses.

        Args:
            format: Its name, such as ``float16``.
            scale: Power of two that the numbers are multiplied by before.

        Raises:
            PromotionError: There is no such format.
            ArgumentError: ``scale`` is no power of two, or the format one of integers.
        """
        return shares_of(self.counts, format, scale)


def together(rows: Iterable[Exponents], name: str, kind: str) -> Exponents:
    """Return the exponents of several tensors as of one."""
    found = tuple(rows)
    counts = sum((Counter(dict(row.counts)) for row in found), Counter[int]())
    return Exponents(
        name,
        kind,
        "",
        dict(sorted(counts.items())),
        sum(row.zeros for row in found),
        sum(row.nonfinite for row in found),
        max((row.bound for row in found), default=0.0),
    )
