"""Bounds on the error of a plan that a user gives, and a plan with its errors."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from numbers import Real
from typing import Any, TypeAlias, cast

from amprewrite.errors import ToleranceError, UnsupportedError
from amprewrite.plan.model import Plan

AUTOCAST = "autocast"
"""Tolerance equal to the error of torch.autocast on the same arguments."""

FASTEST = "fastest"
"""Placement that times plans within the tolerance and takes the fastest one."""

SEARCHED = "optimal", FASTEST
"""Placements that accept a tolerance."""

Tolerance: TypeAlias = float | str | Mapping[str, float]
"""A bound on the relative L2 error of all float outputs together, or by path.

Or ``"autocast"``.
"""


@dataclass(frozen=True)
class Point:
    """One plan on the front, with its errors.

    Attributes:
        placement: ``optimal``, or another placement for comparison.
        plan: The plan; ``plan.cost.lower_bound`` is its certificate.
        predicted: First-order relative L2 error of all float outputs together.
        measured: That error of its program; None if it draws random numbers.
    """

    placement: str
    plan: Plan
    predicted: float
    measured: float | None


def placement_for(placement: str | None, tolerance: object) -> str:
    """Return ``placement``, or its default: ``optimal`` with a tolerance.

    Without a tolerance it is ``promote``.
    """
    if placement is not None:
        return placement
    return "promote" if tolerance is None else "optimal"


def strategy_of(placement: str) -> str:
    """Return the strategy that plans without measurements by the name of a placement.

    Programs that cannot be timed (of other calls of the model, in the bodies of custom
    rules) are planned by prices where ``fastest`` is asked for.
    """
    return "optimal" if placement == FASTEST else placement


def check_tolerance(tolerance: object, placement: str) -> None:
    """Check ``tolerance``, and that ``placement`` accepts one.

    Raises:
        ToleranceError: It is no tolerance.
        UnsupportedError: The placement takes none.
    """
    if placement not in SEARCHED:
        msg = (
            f"placement {placement!r} takes no tolerance, only 'optimal' and 'fastest' "
            f"do; leave placement out, which is then 'optimal', or leave tolerance=None"
        )
        raise UnsupportedError(msg)
    if isinstance(tolerance, Mapping):
        bounds = cast("Mapping[Any, Any]", tolerance)
        if not bounds:
            msg = "tolerance={} bounds no output; name one, or pass one number for all"
            raise ToleranceError(msg)
        for path, number in bounds.items():
            _check_number(number, f"tolerance[{path!r}]")
    elif tolerance != AUTOCAST:
        _check_number(tolerance, "tolerance")


def check_rtol(rtol: object) -> None:
    """Check the bound of a verification: a NaN is no bound that an error exceeds.

    Raises:
        ToleranceError: It is neither None nor a number, 0 or more.
    """
    if rtol is None:
        return
    known = not isinstance(rtol, bool) and isinstance(rtol, Real)
    if not (known and float(cast("float", rtol)) >= 0.0):
        msg = f"rtol is {rtol!r}; want a relative error such as 1e-3, 0 or more"
        raise ToleranceError(msg)


def _check_number(number: object, where: str) -> None:
    known = isinstance(number, (int, float)) and not isinstance(number, bool)
    if not (known and 0.0 < cast("float", number) < inf):
        msg = (
            f"{where} is {number!r}; want a relative error above 0 such as 1e-3, "
            f"{AUTOCAST!r}, or a table of output paths with numbers"
        )
        raise ToleranceError(msg)
