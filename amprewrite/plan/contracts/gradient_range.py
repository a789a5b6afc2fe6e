"""Facts of a plan about the range of gradients, for advice on loss scales."""

from amprewrite.plan.model import Plan

SCALE = "scale"
"""Canonical name of the factors of unit scaling."""


def is_unit_scaled(plan: Plan) -> bool:
    """Return whether the program has factors of unit scaling."""
    return any(decision.canonical == SCALE for decision in plan.decisions)


def gradient_format(plan: Plan) -> str:
    """Return the narrowest format in which gradients are held without a scale.

    That is the 8-bit format of gradients where a contraction rounds to one and no
    scale comes from the tensor itself; else the low dtype, which may be empty.
    """
    for decision in plan.decisions:
        if decision.backward and decision.scaling == "none":
            return decision.backward
    return plan.low
