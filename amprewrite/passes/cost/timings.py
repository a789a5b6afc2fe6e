"""Measured times of ops in low and in full precision; contractions by shape.

Thin products are bound by memory, small ones by their launch, and a low dtype may be
faster in one shape and slower in another. Times are therefore indexed by the smallest
extent of a product (``thin``) and by the root of the product of the other two
(``side``), and interpolated between measurements; outside them the nearest is used.
"""

from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import exp, log
from statistics import median

from amprewrite.passes.cost.flops import Work
from amprewrite.plan.hardware.calibration import Kind


@dataclass(frozen=True, slots=True)
class Point:
    """One timed contraction.

    Attributes:
        thin: Smallest extent of one product.
        macs: Multiply-adds of one product.
        full: Bytes that could be moved during one multiply-add in full precision.
        low: The same in low precision.
    """

    thin: int
    macs: int
    full: float
    low: float

    @property
    def side(self) -> float:
        """Root of the product of the two larger extents."""
        return (self.macs / self.thin) ** 0.5


@dataclass(frozen=True, slots=True)
class Timings:
    """Times of ops, as the number of bytes that could be moved meanwhile.

    Attributes:
        points: Contractions, by kind; products are always there.
        saved: Bytes that an element is smaller in low precision.
        elementwise: By canonical name of an op other than a contraction: the extra cost
            in bytes of an element, read or written, in low precision, beside its size;
            negative if it is cheaper.
    """

    points: Mapping[Kind, tuple[Point, ...]]
    saved: int
    elementwise: Mapping[str, float] = field(default_factory=dict[str, float])

    def dearer(self, canonical: str) -> float:
        """Return the extra cost of an op's element in low precision, at least 0.

        For an op without a measurement it is the median of the others.
        """
        usual = median(self.elementwise.values()) if self.elementwise else 0.0
        return max(self.elementwise.get(canonical, usual), 0.0)

    def lost(self, work: Work) -> float:
        """Return the cost of running a contraction in full instead of low, in bytes.

        It is negative if low is slower. The time saved by moving fewer bytes is
        subtracted: those bytes are counted separately, but are part of the measured
        time.
        """
        full, low = self.per_mac(work)
        return work.macs * (full - low) - self.saved * work.elements

    def speedup(self, work: Work) -> float:
        """Return the speed of a low contraction relative to a full one."""
        full, low = self.per_mac(work)
        return full / low

    def per_mac(self, work: Work) -> tuple[float, float]:
        """Return the bytes of one multiply-add in full and in low precision."""
        points = self.points.get(work.kind) or self.points["product"]
        side = (work.macs / work.batches / work.thin) ** 0.5
        return (
            _at(points, work.thin, side, lambda point: point.full),
            _at(points, work.thin, side, lambda point: point.low),
        )


def _at(
    points: Sequence[Point], thin: float, side: float, of: Callable[[Point], float]
) -> float:
    """Interpolate on logarithms: by side among equally thin points, then by thin."""
    ordered = sorted(points, key=lambda point: (point.thin, point.side))
    rows: list[tuple[float, float]] = []
    for extent, group in groupby(ordered, key=lambda point: point.thin):
        known = [(log(point.side), log(of(point))) for point in group]
        rows.append((log(extent), _between(known, log(side))))
    return exp(_between(rows, log(thin)))


def _between(known: Sequence[tuple[float, float]], at: float) -> float:
    """Return the value at ``at`` by linear interpolation of sorted points."""
    index = bisect([place for place, _ in known], at)
    if index in (0, len(known)):
        return known[max(index - 1, 0)][1]
    (left, low), (right, high) = known[index - 1], known[index]
    return low + (high - low) * (at - left) / (right - left)
