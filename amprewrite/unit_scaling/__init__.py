"""Unit scaling: factors that keep every tensor, forward and backward, near scale 1.

Rules are plain numbers, the same for torch and JAX; neither is loaded before its use.
"""

from amprewrite.unit_scaling.constraints import CONSTRAINTS, apply_constraint
from amprewrite.unit_scaling.empirical import measure_rule
from amprewrite.unit_scaling.figures import figures_of, plot_figures
from amprewrite.unit_scaling.moments import Moments
from amprewrite.unit_scaling.rules import (
    RULES,
    Factors,
    Rule,
    derive_rule,
    rule,
    rule_of_function,
)
from amprewrite.unit_scaling.scale import scale_bwd, scale_fwd
from amprewrite.unit_scaling.tracking import track_scales
from amprewrite.unit_scaling.validity import check_gradient_validity

__all__ = [
    "CONSTRAINTS",
    "RULES",
    "Factors",
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
    "track_scales",
]
