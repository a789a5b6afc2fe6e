"""Loss scale that histograms of gradients suggest, and the formats drawn over them."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import frexp, log2
from typing import Protocol

from amprewrite.dtypes import FORMATS
from amprewrite.page.model import Histogram

DRAWN = ("float16", "bfloat16", "float8_e5m2", "float8_e4m3fn")
"""Formats drawn over the exponents."""

LOST = 1e-3
"""Share of nonzero gradient elements that may become zero.

A choice without a measured optimum: far below the share that trainings are known to
lose without a scale, and not zero, because a single outlier would set the scale.
"""


class Exponents(Protocol):
    """Exponents of the elements of a tensor, as they are measured.

    Any object with the attributes of :class:`Histogram` is one.
    """

    @property
    def name(self) -> str:
        """Name of the tensor."""
        ...

    @property
    def kind(self) -> str:
        """Kind of the tensor, see :class:`Histogram`."""
        ...

    @property
    def path(self) -> str:
        """Path of its module."""
        ...

    @property
    def counts(self) -> Mapping[int, int]:
        """Number of elements by exponent."""
        ...

    @property
    def zeros(self) -> int:
        """Number of zeros."""
        ...

    @property
    def nonfinite(self) -> int:
        """Number of elements that are not finite."""
        ...


def as_histograms(found: Iterable[Exponents]) -> tuple[Histogram, ...]:
    """Return measured exponents as histograms of a page."""
    return tuple(
        Histogram(
            e.name,
            str(e.kind),
            e.path,
            {int(k): int(n) for k, n in e.counts.items()},
            int(e.zeros),
            int(e.nonfinite),
        )
        for e in found
    )


@dataclass(frozen=True, slots=True)
class LossScale:
    """Powers of two by which a loss may be scaled for gradients in float16.

    Attributes:
        least: Exponent of the smallest scale at which at most :data:`LOST` of the
            nonzero elements become zero; 0 if none is needed.
        most: Exponent of the largest scale at which no element can overflow: one of
            exponent ``e`` may be almost ``2**(e + 1)``.
        lost: Share of the nonzero elements that become zero without a scale.
    """

    least: int
    most: int
    lost: float

    @property
    def fits(self) -> bool:
        """Whether one scale does both."""
        return self.least <= self.most


@dataclass(frozen=True, slots=True)
class Range:
    """Exponents of a format, each that of the numbers from ``2**e`` on.

    Attributes:
        name: Name of the dtype.
        subnormal: Exponent of its smallest number.
        normal: Exponent of its smallest normal number.
        largest: Exponent of its largest number.
    """

    name: str
    subnormal: int
    normal: int
    largest: int


def ranges() -> tuple[Range, ...]:
    """Return the exponents of the formats in :data:`DRAWN`."""
    found = (FORMATS[name] for name in DRAWN)
    return tuple(
        Range(
            f.name,
            round(log2(f.smallest_subnormal)),
            round(log2(f.smallest_normal)),
            frexp(f.max)[1] - 1,
        )
        for f in found
    )


def loss_scale(histograms: Iterable[Histogram]) -> LossScale | None:
    """Return the loss scales that the gradients among ``histograms`` allow.

    Returns:
        None if there is no nonzero gradient.
    """
    counts: Counter[int] = Counter()
    for histogram in histograms:
        if histogram.kind.endswith("gradient"):
            counts.update(histogram.counts)
    found = sorted(exponent for exponent, count in counts.items() if count)
    if not found:
        return None
    half = next(r for r in ranges() if r.name == "float16")
    allowed = LOST * counts.total()
    below = 0
    kept = found[-1]  # the smallest exponent that must stay representable
    for exponent in found:
        below += counts[exponent]
        if below > allowed:
            kept = exponent
            break
    lost = sum(counts[e] for e in found if e < half.subnormal)
    return LossScale(
        least=max(0, half.subnormal - kept),
        most=half.largest - 1 - found[-1],
        lost=lost / counts.total(),
    )
