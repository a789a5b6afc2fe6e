"""From the rules of units to a scale plan: the cut-edge rule, and residual branches."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from amprewrite.unit_scaling.constraints import CONSTRAINTS, apply_constraint
from amprewrite.unit_scaling.graph.loss_gradient import loss_gradient
from amprewrite.unit_scaling.graph.mixtures import find_mixtures
from amprewrite.unit_scaling.graph.residuals import Residual
from amprewrite.unit_scaling.graph.scales import Scale, ScalePlan
from amprewrite.unit_scaling.graph.unit_rule import UnitRule
from amprewrite.unit_scaling.graph.units import Edge, Unit
from amprewrite.unit_scaling.rules import extents

AUTO = "auto"
"""Name of the constraint that takes the forward factor where an edge is not cut."""

ROUNDING = 1e-9
"""A factor this near to 1 is 1: an integral has an error."""


def assign(  # noqa: PLR0913  # what was found, and how to scale
    units: Sequence[Unit],
    rules: Mapping[str, UnitRule],
    cut: frozenset[Edge],
    residuals: Sequence[Residual],
    outputs: Sequence[str] = (),
    *,
    constraint: str | None = AUTO,
    tau: float = 0.5,
) -> ScalePlan:
    """Return the factors of all units.

    Args:
        units: Units of the program.
        rules: Rule of each unit but the residual additions, by name.
        cut: Cut edges: their backward factors stay those of the rules.
        residuals: Residual additions.
        outputs: Values at which gradients enter.
        constraint: Chooses one factor for the forward pass and all edges that are no
            cut edges. ``auto`` and ``to_output_scale`` take the forward factor. One
            that joins another number of factors does not apply to a unit, which then
            takes the forward factor. None leaves every edge its own factor, so that
            gradients of joined paths are wrong.
        tau: Weight of residual branches; that of the skip is 1.

    Raises:
        UnitScalingError: The constraint is unknown.
    """
    found: list[Scale] = []
    sums = {residual.unit: residual for residual in residuals}
    kinds: dict[str, str] = {}
    gates, mixtures = _gates(units), find_mixtures(units, rules)
    for unit in units:
        if unit.name in sums:
            kinds[unit.name] = "residual"
            found += _weights(unit, sums[unit.name], tau)
        else:
            rule = rules[unit.name]
            kinds[unit.name] = rule.kind
            if unit.results and gates.issuperset(unit.results) and rule.gate:
                rule = replace(rule, forward=rule.gate)
            if unit.name in mixtures:
                rule = replace(rule, forward=1.0, undone=False, fixed=True)
            found += _factors(unit, rule, cut, constraint)
    if constraint is not None:
        backward = {name: rule.backward for name, rule in rules.items()}
        found += loss_gradient(units, backward, cut, outputs)
    scales = [s for s in found if not _is_one(s.forward) or not _is_one(s.backward)]
    edges = sum(len(unit.edges) for unit in units)
    return ScalePlan(tuple(scales), tuple(sums), kinds, edges, len(cut))


def _factors(
    unit: Unit, rule: UnitRule, cut: frozenset[Edge], constraint: str | None
) -> list[Scale]:
    """Return the factors of one unit under a constraint."""
    if unit.is_of_loss:  # its value is what the model says
        rule = replace(rule, forward=1.0, mult=1.0, fixed=True)
    forward = rule.forward
    own = {edge: rule.backward.get(edge.index, 1.0) for edge in unit.edges}
    joined = [edge for edge in unit.edges if edge not in cut] if constraint else []
    name = ""
    if joined:
        name = _applicable(constraint, rule, 1 + len(joined))
        forward, *_ = apply_constraint(name, forward, *(own[edge] for edge in joined))
        own |= dict.fromkeys(joined, forward)
    about, mult = (rule.kind, rule.why), rule.mult
    given = {edge: mult * rule.inside.get(edge.index, 1.0) for edge in own}
    after = mult if rule.undone else 1.0
    return [
        *(
            Scale(
                edge.value, unit.name, edge.index, given[edge], given[edge] * factor,
                about[0],
                name if edge in joined else "", edge in cut, about[1],
            )
            for edge, factor in own.items()
        ),
        *(
            Scale(value, unit.name, None, forward / after, 1 / after, about[0], name,
                  why=about[1])
            for value in unit.results
        ),
    ]  # fmt: skip


def _gates(units: Sequence[Unit]) -> set[str]:
    """Return the values that are only multiplied with others."""
    products, others = set[str](), set[str]()
    for unit in units:
        product = unit.ops[-1].canonical == "mul" and len(unit.edges) > 1
        (products if product else others).update(edge.value for edge in unit.edges)
    return products - others


def _applicable(constraint: str | None, rule: UnitRule, count: int) -> str:
    """Return the constraint that joins this number of factors."""
    if constraint in (AUTO, None) or rule.fixed:
        return "to_output_scale"
    joins, _ = CONSTRAINTS.get(constraint, (None, None))
    return "to_output_scale" if joins not in (None, count) else constraint


def _weights(unit: Unit, residual: Residual, tau: float) -> list[Scale]:
    """Return the factors of a residual addition.

    The weights stand at the sum, forward. Backward, that of the branch stands where the
    branch starts, so that gradients inside have unit scale.
    """
    weights = extents.residual(tau=tau).backward
    branch, skip = weights["branch"], weights["skip"]
    values = unit.ops[-1].operands
    why = f"tau {tau:g}"
    inside = 1.0 if residual.entries else branch
    return [
        *(
            Scale(edge.value, edge.unit, edge.index, 1.0, branch, "residual", why=why)
            for edge in residual.entries
        ),
        Scale(values[residual.branch], unit.name, residual.branch, branch, inside,
              "residual", why=why),
        Scale(values[residual.skip], unit.name, residual.skip, skip, skip,
              "residual", why=why),
    ]  # fmt: skip


def _is_one(factor: Any) -> bool:
    return isinstance(factor, (int, float)) and abs(factor - 1) < ROUNDING
