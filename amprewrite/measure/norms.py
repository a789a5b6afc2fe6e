"""The error of all outputs as one number, and the bound on it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf, sqrt

import numpy as np

from amprewrite.errors import ToleranceError
from amprewrite.measure.runs import Array, Run


@dataclass(frozen=True)
class Norms:
    """Norm of the errors of several outputs.

    Attributes:
        factors: Factor on the L2 error of each bounded output, by path.
        jointly: Whether the errors are combined as a root of squares; else as a
            maximum.
        target: Bound on the norm.
    """

    factors: Mapping[str, float]
    jointly: bool
    target: float

    def error(self, found: Run, reference: Run) -> float:
        """Return the norm for one run; infinite if an output is not finite."""
        errors = [
            factor * _norm(found.outputs[path] - reference.outputs[path])
            for path, factor in self.factors.items()
        ]
        if not np.isfinite(errors).all():
            return inf
        return sqrt(sum(e * e for e in errors)) if self.jointly else max(errors)


def norms_of(
    tolerance: float | str | Mapping[str, float],
    reference: Run,
    baseline: Callable[[], Run],
    called: str,
) -> Norms:
    """Return the norm of the errors, and the bound on it.

    Args:
        tolerance: The user's tolerance: a bound on all float outputs together, on each
            by path, or ``"autocast"``.
        reference: The run in full precision.
        baseline: Runs the baseline that ``"autocast"`` refers to.
        called: Name of that baseline in an error.

    Raises:
        ToleranceError: The tolerance bounds nothing here.
    """
    sizes = {path: _norm(array) for path, array in reference.outputs.items()}
    if isinstance(tolerance, Mapping):
        return _separate(tolerance, sizes)
    total = sqrt(sum(size * size for size in sizes.values()))
    if total == 0.0:  # no float output, or zeros alone: said where it runs
        total = 1.0
    # One that is not finite has no size; a run that looks for its op names it.
    factors = dict.fromkeys(sizes, 1.0 / total if np.isfinite(total) else 1.0)
    if not isinstance(tolerance, str):
        return Norms(factors, jointly=True, target=tolerance)
    if not sizes or not np.isfinite(total):  # as above: said where it runs
        return Norms(factors, jointly=True, target=inf)
    target = Norms(factors, jointly=True, target=0.0).error(baseline(), reference)
    if not 0.0 < target < inf:
        msg = (
            f"tolerance='autocast': the error of {called} on these arguments is "
            f"{target:.3g}, which bounds nothing; pass a number such as 1e-3"
        )
        raise ToleranceError(msg)
    return Norms(factors, jointly=True, target=target)


def _separate(bounds: Mapping[str, float], sizes: Mapping[str, float]) -> Norms:
    """Return norms in units of the smallest bound.

    Raises:
        ToleranceError: A bound is zero, or its path is no float output.
    """
    strictest = min(bounds.values())
    factors: dict[str, float] = {}
    for path, bound in bounds.items():
        if path not in sizes:
            known = ", ".join(map(repr, sizes)) or "none"
            msg = (
                f"tolerance[{path!r}]: there is no such float output; there are {known}"
            )
            raise ToleranceError(msg)
        if sizes[path] == 0.0:
            msg = (
                f"tolerance[{path!r}]: this output is zero, so that no error is "
                f"relative to it; leave it out, or give other arguments"
            )
            raise ToleranceError(msg)
        factors[path] = strictest / bound / sizes[path]
    return Norms(factors, jointly=False, target=strictest)


def _norm(array: Array) -> float:
    with np.errstate(invalid="ignore", over="ignore"):
        return float(np.linalg.norm(array))
