"""Reasons of contractions that a tolerance keeps out of 8 bits."""

from collections.abc import Iterable
from dataclasses import replace
from math import isfinite, sqrt

from amprewrite.plan import Decision
from amprewrite.plan.sensitivity import EightBits, Sensitivity


def without_eight_bits(
    decisions: Iterable[Decision], sensitivity: Sensitivity
) -> tuple[Decision, ...]:
    """Return decisions; those that might round to 8 bits and do not say why."""
    by_op = sensitivity.eight_by_op
    return tuple(
        replace(found, why=f"{found.why}; {_reason(by_op[found.op], sensitivity)}")
        if found.op in by_op and not found.quantises
        else found
        for found in decisions
    )


def _reason(key: EightBits, sensitivity: Sensitivity) -> str:
    error = sensitivity.eight[key]
    if not isfinite(error):
        return (
            "not in 8 bits: the error of its operands is not known, because they are "
            "written in place or are not finite"
        )
    found = sensitivity.gradients
    said = f"operands in {key.format} alone cause an error of {sqrt(error):.1e}"
    if found is None:
        return f"not in 8 bits: {said}"
    gradients = f"{sqrt(found.square(key.op)):.1e} of gradients"
    said = f"{said}, and {gradients}" if key.format else f"it causes {gradients}"
    return f"not in 8 bits: {said}"
