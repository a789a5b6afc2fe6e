"""The pass over a whole program, as far as both frameworks do the same."""

from amprewrite.unit_scaling.program.call import OpCall, shape_of
from amprewrite.unit_scaling.program.op_rules import (
    CLOSED,
    gather,
    masked,
    product,
    quotient,
    rule_by_table,
    unscaled,
)
from amprewrite.unit_scaling.program.plan import plan_scales

__all__ = [
    "CLOSED",
    "OpCall",
    "gather",
    "masked",
    "plan_scales",
    "product",
    "quotient",
    "rule_by_table",
    "shape_of",
    "unscaled",
]
