"""Plans: the decisions about ops, and the casts, of one program as plain data."""

from amprewrite.plan.join import join_plans
from amprewrite.plan.model import (
    NOTHING_LOWERED,
    OUTPUT,
    Cast,
    Cost,
    Decision,
    Plan,
)
from amprewrite.plan.text import DEFAULT_PRICES

__all__ = [
    "DEFAULT_PRICES",
    "NOTHING_LOWERED",
    "OUTPUT",
    "Cast",
    "Cost",
    "Decision",
    "Plan",
    "join_plans",
]
