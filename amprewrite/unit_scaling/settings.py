"""Options of the pass over a whole model."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Settings:
    """Options of the pass.

    Attributes:
        constraint: Constraint of factors that are joined; None for no cut-edge rule.
        tau: Weight of residual branches.
        mult: Multipliers by canonical name of an elementwise op.
    """

    constraint: str | None = "auto"
    tau: float = 0.5
    mult: Mapping[str, float] = field(default_factory=dict[str, float])
