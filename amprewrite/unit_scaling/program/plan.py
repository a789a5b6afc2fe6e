"""From a read program to its scale plan: the analyses and rules, in their order."""

from collections.abc import Callable, Mapping, Sequence

from amprewrite.unit_scaling.graph import (
    Closing,
    Differentiable,
    ScalePlan,
    Unit,
    UnitRule,
    assign,
    cut_edges,
    find_residuals,
    find_units,
    mark_loss,
)
from amprewrite.unit_scaling.settings import Settings

Find = Callable[[Sequence[Unit], frozenset[str]], Mapping[str, UnitRule]]
"""Returns the rule of each unit but those that are named."""


def plan_scales(
    live: Differentiable,
    find_rules: Find,
    settings: Settings,
    *,
    closing: Closing = (),
    elementwise: frozenset[str] = frozenset(),
) -> tuple[tuple[Unit, ...], ScalePlan]:
    """Return the units of a program, and its scale plan; nothing is written.

    Args:
        live: The differentiable part of the program.
        find_rules: Finds the rules of the framework.
        settings: How to scale.
        closing: Carries of its loops.
        elementwise: Names of ops that are functions of single numbers.

    Raises:
        UnitScalingError: An op has no rule.
    """
    units = mark_loss(live, find_units(live, elementwise), closing)
    cut = cut_edges(live, units, closing)
    residuals = find_residuals(live, units, cut, closing)
    plan = assign(
        units,
        find_rules(units, frozenset(residual.unit for residual in residuals)),
        cut,
        residuals,
        live.outputs,
        constraint=settings.constraint,
        tau=settings.tau,
    )
    return units, plan
