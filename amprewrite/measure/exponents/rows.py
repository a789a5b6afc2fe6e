"""The exponents of one tensor, and the shares of its numbers that a format loses."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite, ldexp, nan
from sys import float_info
from typing import Literal, NamedTuple, get_args

from amprewrite.dtypes import format_of
from amprewrite.errors import ArgumentError


class Shares(NamedTuple):
    """Shares of the finite numbers that are not zero, from 0 to 1.

    Binades are counted whole, so that a share is exact but for two of them: numbers
    between the largest one and the power of two above it count as inside the range, and
    exact halves of the smallest number, which round to zero, as subnormal.

    Attributes:
        zero: Numbers below half the smallest one of the format: they round to zero.
        subnormal: Numbers below the smallest normal one that are not rounded to zero:
            significant bits are lost.
        overflow: Numbers in binades above that of the largest one.
    """

    zero: float
    subnormal: float
    overflow: float

    @property
    def inside(self) -> float:
        """Share of the numbers that keep every bit of the format's precision."""
        return 1.0 - self.zero - self.subnormal - self.overflow


class Range(NamedTuple):
    """The range of a format, in exponents of two.

    Attributes:
        least: Exponent of half the smallest number: below it numbers become zero.
        normal: Exponent of the smallest normal number.
        largest: Exponent of the binade of the largest number.
    """

    least: int
    normal: int
    largest: int


def range_of(name: str) -> Range:
    """Return the range of a format.

    Raises:
        PromotionError: There is no such format.
        ArgumentError: It is one of integers.
    """
    found = format_of(name)
    if found.kind not in ("float", "complex"):
        msg = f"the format {name} has no exponents; want one of floats, such as float16"
        raise ArgumentError(msg)
    least, normal, largest = (
        math.frexp(end)[1] - 1
        for end in (found.smallest_subnormal, found.smallest_normal, found.max)
    )
    return Range(least - 1, normal, largest)


def shares_of(counts: Mapping[int, int], name: str, scale: float = 1.0) -> Shares:
    """Return the shares of numbers that a format loses.

    Args:
        counts: Numbers by exponent, see :class:`Exponents`.
        name: Name of the format.
        scale: Power of two that the numbers are multiplied by, as a loss scale does.

    Raises:
        PromotionError: There is no such format.
        ArgumentError: ``scale`` is no power of two, or the format one of integers.
    """
    moved, ends = exponent_of(scale), range_of(name)
    total = sum(counts.values())
    if not total:
        return Shares(0.0, 0.0, 0.0)
    zero = sum(n for e, n in counts.items() if e + moved < ends.least)
    small = sum(n for e, n in counts.items() if ends.least <= e + moved < ends.normal)
    large = sum(n for e, n in counts.items() if e + moved > ends.largest)
    return Shares(zero / total, small / total, large / total)


def exponent_of(scale: float) -> int:
    """Return the exponent of a power of two.

    Raises:
        ArgumentError: ``scale`` is another number.
    """
    mantissa, exponent = math.frexp(scale)
    if mantissa != 0.5:  # noqa: PLR2004  # frexp of powers of two alone
        msg = f"scale is {scale}; want a power of two, which moves exponents alone"
        raise ArgumentError(msg)
    return exponent - 1


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
