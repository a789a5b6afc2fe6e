"""Constraints: one factor for several passes, where unit scaling needs them equal.

A forward factor and the factor of an input's gradient may differ only where the input
is a cut edge of the differentiable graph (Blake, Orr and Luschi, Unit Scaling, ICML
2023, section 3). Elsewhere gradients stay true up to one common factor only if both
are the same number, which a constraint chooses.
"""

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from amprewrite.errors import UnitScalingError

Factor = Any
"""A positive factor: a float, or a number of a tracer (an extent that varies)."""


def _gmean(factors: Sequence[Factor]) -> Factor:
    """Return the geometric mean; roots come first, so that no product overflows."""
    result = factors[0] ** (1 / len(factors))
    for factor in factors[1:]:
        result = result * factor ** (1 / len(factors))
    return result


CONSTRAINTS: Mapping[str, tuple[int | None, Callable[[Sequence[Factor]], Factor]]] = {
    "gmean": (None, _gmean),
    "hmean": (None, lambda factors: len(factors) / sum(1 / x for x in factors)),
    "amean": (None, lambda factors: sum(factors) / len(factors)),
    "to_output_scale": (None, lambda factors: factors[0]),
    "to_grad_input_scale": (2, lambda factors: factors[1]),
    "to_left_grad_scale": (3, lambda factors: factors[1]),
    "to_right_grad_scale": (3, lambda factors: factors[2]),
}
"""For each name, how many factors it joins (None: any number), and the one chosen."""


def apply_constraint(constraint: str | None, *factors: Factor) -> tuple[Factor, ...]:
    """Return the factors as a constraint wants them.

    Args:
        constraint: A name of :data:`CONSTRAINTS`; None or ``""`` leaves all factors as
            they are.
        *factors: The factor of the output, then those of the gradients of the inputs:
            one for an op of one input, left and right for one of two.

    Returns:
        As many factors as were given, all equal unless the constraint is None.

    Raises:
        UnitScalingError: The constraint is unknown, or joins another number of factors.
    """
    if not constraint:
        return factors
    if constraint not in CONSTRAINTS:
        near = get_close_matches(constraint, CONSTRAINTS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        msg = (
            f"unknown constraint {constraint!r}; want one of "
            f"{', '.join(CONSTRAINTS)}, or None{hint}"
        )
        raise UnitScalingError(msg)
    count, choose = CONSTRAINTS[constraint]
    if not factors or (count is not None and count != len(factors)):
        joins = "at least one factor" if count is None else f"{count} factors"
        msg = (
            f"constraint {constraint!r} joins {joins}, the output's first, and "
            f"{len(factors)} were given; 'to_output_scale' joins any number"
        )
        raise UnitScalingError(msg)
    return (choose(factors),) * len(factors)
