"""Errors of parameters' gradients by the contractions that round to 8 bits."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import sqrt

from amprewrite.plan.model import GradientError

NOISE = 2.0**-12
"""Relative size below which a gradient is zero but for rounding.

It is relative to the root mean square of all gradients. The key bias of an attention
has such a gradient: its error says nothing.
"""


@dataclass(frozen=True)
class Gradients:
    """Measured changes of the gradients of a loss, by contraction.

    The loss is the mean square distance of the float outputs to fixed random targets,
    of which ``verify`` compares the gradients.

    Attributes:
        sizes: L2 norm of the gradient of each parameter, in full precision.
        counts: Number of elements of each parameter.
        eight: By contraction: the L2 norm of the change of each parameter's gradient
            if it alone rounds to 8 bits, forward and backward.
        low: The same for all roundings to the low dtype of one plan together.
        low_outputs: Predicted squared error of the outputs by those roundings.
        unit: Factor by which errors of gradients are compared with those of outputs.
    """

    sizes: Mapping[str, float]
    counts: Mapping[str, int]
    eight: Mapping[str, Mapping[str, float]]
    low: Mapping[str, float]
    low_outputs: float = 0.0
    unit: float = 1.0
    _squares: dict[str, float] = field(default_factory=dict[str, float])

    @cached_property
    def norm(self) -> float:
        """The L2 norm of all gradients together."""
        return sqrt(sum(size * size for size in self.sizes.values()))

    @cached_property
    def low_share(self) -> float:
        """Squared error of the gradients by 16 bits over that of the outputs."""
        low = sum(change * change for change in self.low.values())
        return low / self.norm**2 / self.low_outputs if self.low_outputs else 0.0

    def square(self, op: str) -> float:
        """Return the squared relative error of all gradients by 8 bits in one op."""
        if op not in self._squares:
            found = self.eight.get(op, {}).values()
            self._squares[op] = sum(e * e for e in found) / self.norm**2
        return self._squares[op]

    def error(self, ops: Iterable[str], low_outputs: float) -> GradientError:
        """Return the predicted error of the gradients under a plan.

        Errors of different contractions are independent. Those of 16 bits are taken in
        proportion to the error of the outputs that they cause.

        Args:
            ops: The contractions that round to 8 bits.
            low_outputs: Predicted squared error of the outputs by 16-bit roundings.
        """
        share = low_outputs / self.low_outputs if self.low_outputs else 0.0
        squares = {name: share * self.low[name] ** 2 for name in self.sizes}
        for op in ops:
            for name, change in self.eight.get(op, {}).items():
                squares[name] += change * change
        return self.relative({name: sqrt(square) for name, square in squares.items()})

    def relative(self, changes: Mapping[str, float]) -> GradientError:
        """Return changes of the gradients as relative errors.

        Args:
            changes: The L2 norm of the change of each parameter's gradient.
        """
        typical = self.norm / sqrt(sum(self.counts.values()))
        floors = {n: NOISE * typical * sqrt(k) for n, k in self.counts.items()}
        each = {
            name: change / self.sizes[name]
            for name, change in changes.items()
            if self.sizes[name] > floors[name]
        }
        worst = max(each, key=lambda name: each[name])
        total = sqrt(sum(change * change for change in changes.values())) / self.norm
        return GradientError(total, each[worst], worst)
