"""The rule of a unit: its factors before any constraint; that of a region."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from amprewrite.unit_scaling.rules import Rule, gate_factor, varies


@dataclass(frozen=True)
class UnitRule:
    """The factors of one unit before any constraint.

    Attributes:
        forward: Factor of each result.
        backward: Factor of the gradient of each input, by :attr:`Edge.index`; 1 where
            an index is missing.
        kind: Source of the rule.
        why: What that is based on.
        mult: Multiplier m of an op f: it computes f(mx)/m.
        undone: Whether the result is divided by the multiplier again.
        fixed: Whether the forward factor must stay (a loss): a constraint that chooses
            another one does not apply.
        gate: Factor of a result that is only multiplied with others: that for root mean
            square 1, since its mean counts. None where it is ``forward``.
        inside: Factors of inputs that the op cannot have at its result, by index: those
            of the weights of a recurrent kernel, which it sums over inside.
        has_mean: Whether the mean of the result is larger than its deviation: it is
            between 0 and 1, as a sigmoid is, or positive.
    """

    forward: Any
    backward: Mapping[int, Any]
    kind: str
    why: str = ""
    mult: float = 1.0
    undone: bool = True
    fixed: bool = False
    gate: Any = None
    has_mean: bool = False
    inside: Mapping[int, float] = field(default_factory=dict[int, float])


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
    forward, gate, has_mean = rule.factors.forward, None, False
    if moments is not None:
        gate, has_mean = gate_factor(moments), abs(moments.mean) > moments.std
        forward = forward if named or varies(moments) else gate
    backward = {-1: rule.factors.backward["input"]}
    return UnitRule(
        forward, backward, rule.kind, why, rule.mult, gate=gate, has_mean=has_mean
    )
