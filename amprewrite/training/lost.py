"""Counts of the updates of weights that rounding to the stored format loses.

A weight is stored in a format of few bits, and an optimizer's update is added to it. An
update below half the distance to the next number of the format is rounded away: for
numbers near a power of two, below 2**-11 of the weight in float16 and 2**-8 in
bfloat16. Source: Micikevicius et al., Mixed Precision Training (arXiv 1710.03740),
section 3.1.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amprewrite.dtypes.rounding import nearest


@dataclass(frozen=True)
class UpdateCount:
    """Updates of one parameter in one step, or in several.

    Attributes:
        format: Name of the format that the weights are stored in, or would be.
        weights: Number of weights, each counted in each step.
        updates: Number of those with an update that is not zero.
        lost: Number of updates that leave the stored weight as it was.
    """

    format: str
    weights: int
    updates: int
    lost: int

    @property
    def share(self) -> float:
        """Share of the updates that are lost."""
        return self.lost / self.updates if self.updates else 0.0

    def __add__(self, other: "UpdateCount") -> "UpdateCount":
        """Return the counts of both."""
        format_name = self.format if self.format == other.format else "mixed"
        return UpdateCount(
            format_name,
            self.weights + other.weights,
            self.updates + other.updates,
            self.lost + other.lost,
        )


@dataclass(frozen=True)
class UpdateCounts:
    """Updates of all parameters in one step, or in several.

    Attributes:
        parameters: Counts by name of the parameter.
    """

    parameters: Mapping[str, UpdateCount]

    @property
    def total(self) -> UpdateCount:
        """Counts of all parameters together."""
        found = tuple(self.parameters.values())
        return sum(found[1:], found[0]) if found else UpdateCount("", 0, 0, 0)

    @property
    def share(self) -> float:
        """Share of all updates that are lost."""
        return self.total.share

    def __add__(self, other: "UpdateCounts") -> "UpdateCounts":
        """Return the counts of both, parameter by parameter."""
        found = dict(self.parameters)
        for name, row in other.parameters.items():
            found[name] = found[name] + row if name in found else row
        return UpdateCounts(found)

    def __str__(self) -> str:
        """Return the share in all, then a line for each parameter, the worst first."""
        total = self.total
        rows = sorted(self.parameters.items(), key=lambda row: -row[1].share)
        wide = max(map(len, self.parameters), default=0)
        head = (
            f"{total.share:.1%} of {total.updates:,} updates are lost in {total.format}"
        )
        lines = (
            f"  {name:{wide}} {row.share:6.1%} of {row.updates:,} {row.format}"
            for name, row in rows
        )
        return "\n".join([head, *lines])


def together(steps: Iterable[UpdateCounts]) -> UpdateCounts:
    """Return the counts of several steps."""
    return sum(steps, UpdateCounts({}))


def count_lost(
    weights: NDArray[Any], updates: NDArray[Any], format_name: str
) -> UpdateCount:
    """Count the updates that rounding to a format loses.

    Args:
        weights: Weights before the step; those that are not of the format are rounded
            to it before.
        updates: Sums that the optimizer adds to them, as exactly as they are known.
        format_name: Name of the format.

    Raises:
        PromotionError: There is no such format of floats.
    """
    stored = nearest(weights, format_name)
    moved = np.asarray(updates, np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        after = nearest(stored + moved, format_name)
    moves = moved != 0
    lost = moves & (after == stored)
    return UpdateCount(format_name, stored.size, int(moves.sum()), int(lost.sum()))
