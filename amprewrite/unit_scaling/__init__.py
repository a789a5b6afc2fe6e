"""Unit scaling: factors that keep every tensor, forward and backward, near scale 1.

Rules are plain numbers, the same for both frameworks. Nothing here imports one:
``scale_fwd`` and ``scale_bwd`` load that of their argument.
"""

from amprewrite.unit_scaling.constraints import CONSTRAINTS, apply_constraint
from amprewrite.unit_scaling.figures import Figures, figures_of
from amprewrite.unit_scaling.moments import Moments
from amprewrite.unit_scaling.plots import plot_figures
from amprewrite.unit_scaling.rules import (
    RULES,
    Factors,
    Rule,
    derive_rule,
    measure_rule,
    rule,
    rule_of_function,
)
from amprewrite.unit_scaling.scale import scale_bwd, scale_fwd
from amprewrite.unit_scaling.validity import check_gradient_validity

__all__ = [
    "CONSTRAINTS",
    "RULES",
    "Factors",
    "Figures",
    "Moments",
    "Rule",
    "apply_constraint",
    "check_gradient_validity",
    "derive_rule",
    "figures_of",
    "measure_rule",
    "plot_figures",
    "rule",
    "rule_of_function",
    "scale_bwd",
    "scale_fwd",
]
