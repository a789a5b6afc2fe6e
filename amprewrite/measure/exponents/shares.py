"""Shares of numbers that a format loses: below its range, near its end, above it."""

import math
from collections.abc import Mapping
from typing import NamedTuple

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
