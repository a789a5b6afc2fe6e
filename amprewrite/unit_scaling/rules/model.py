"""Rules: the factors of one op, forward and backward, and where they come from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from amprewrite.unit_scaling.constraints import Factor, apply_constraint
from amprewrite.unit_scaling.moments import Moments

Kind = Literal["closed form", "quadrature", "empirical"]
"""Source of a rule: an exact formula, an integral, or a measured sample."""


class Factors(NamedTuple):
    """Factors of one op before any constraint.

    Attributes:
        forward: Factor of the output.
        backward: Factor of the gradient of each differentiable input, by its name.
        joined: The inputs that a constraint joins with the output, in order. Others,
            weights as a rule, are cut edges: their factors stay as they are.
    """

    forward: Factor
    backward: Mapping[str, Factor]
    joined: tuple[str, ...]


def constrained(factors: Factors, constraint: str | None) -> Factors:
    """Return the factors as a constraint wants them.

    Args:
        factors: Those of a rule.
        constraint: A name of :data:`~amprewrite.unit_scaling.CONSTRAINTS`, or None.

    Raises:
        UnitScalingError: The constraint is unknown, or joins another number of inputs.
    """
    backward = dict(factors.backward)
    given = [backward[name] for name in factors.joined]
    forward, *chosen = apply_constraint(constraint, factors.forward, *given)
    backward |= dict(zip(factors.joined, chosen, strict=True))
    return Factors(forward, backward, factors.joined)


@dataclass(frozen=True)
class Rule:
    """The rule of one op for given extents, before any constraint.

    Attributes:
        op: Name of the op.
        mult: Its multiplier.
        kind: Source of the factors.
        factors: The factors.
        why: What the kind is based on, in words.
        shape: The extents and parameters that were given.
        moments: Of an elementwise op; None of any other.
    """

    op: str
    mult: float
    kind: Kind
    factors: Factors
    why: str
    shape: Mapping[str, float] = field(default_factory=dict[str, float])
    moments: Moments | None = None

    def pair(self) -> tuple[Factor, Factor | Mapping[str, Factor]]:
        """Return the forward factor and the backward one, by input if several."""
        backward = self.factors.backward
        one = next(iter(backward.values())) if len(backward) == 1 else backward
        return self.factors.forward, one

    def __str__(self) -> str:
        """Return one line: the op, its factors, their kind."""
        backward = ", ".join(f"{k} {v:.6g}" for k, v in self.factors.backward.items())
        return (
            f"{self.op}(mult={self.mult:g}): forward {self.factors.forward:.6g}, "
            f"backward {backward} ({self.kind}: {self.why})"
        )
