"""The moments of a scalar function of a unit Gaussian number."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Moments:
    """Moments of Y = f(X) and of f'(X), for X ~ N(0, 1), in float64.

    Attributes:
        mean: E[Y].
        variance: E[(Y - E[Y])^2].
        slope: E[f'(X)^2]: the variance of a gradient that passes back through f, for
            a unit gradient of the output that does not depend on X.
    """

    mean: float
    variance: float
    slope: float

    @property
    def std(self) -> float:
        """Standard deviation of the output."""
        return math.sqrt(self.variance)

    @property
    def rms(self) -> float:
        """Root mean square of the output."""
        return math.hypot(self.std, self.mean)

    @property
    def gradient(self) -> float:
        """Standard deviation of the gradient of the input."""
        return math.sqrt(self.slope)

    def is_usable(self) -> bool:
        """Return whether the output and the gradient have a finite scale above zero."""
        found = (self.variance, self.slope)
        return math.isfinite(self.mean) and all(0 < x < math.inf for x in found)

    def times(self, factor: float) -> "Moments":
        """Return the moments of ``factor * f``."""
        squared = factor * factor
        return Moments(
            self.mean * factor, self.variance * squared, self.slope * squared
        )
