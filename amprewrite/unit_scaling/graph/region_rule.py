"""The rule of an elementwise region, from the rule of the function that it is."""

from amprewrite.unit_scaling.graph.assign import UnitRule
from amprewrite.unit_scaling.rules import Rule, gate_factor, varies


def of_region(rule: Rule, why: str, *, named: bool) -> UnitRule:
    """Return the factors of a region.

    Its output gets standard deviation 1, and root mean square 1 where it hardly varies
    and has no name: that is a gain.

    Args:
        rule: The rule of the function, with its moments.
        why: What the rule is based on.
        named: Whether the function has a name, and with it the convention.
    """
    moments = rule.moments
    forward, gate = rule.factors.forward, None
    if moments is not None:
        gate = gate_factor(moments)
        forward = forward if named or varies(moments) else gate
    backward = {-1: rule.factors.backward["input"]}
    return UnitRule(forward, backward, rule.kind, why, rule.mult, gate=gate)
