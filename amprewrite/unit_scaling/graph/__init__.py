"""Unit scaling of a whole program, on the neutral graph: which factor stands where.

Nothing here belongs to a framework. Rules of single ops come in as data, and a scale
plan goes out, which a writer of the framework applies.
"""

from amprewrite.unit_scaling.graph.assign import assign
from amprewrite.unit_scaling.graph.cut_edges import cut_edges
from amprewrite.unit_scaling.graph.differentiable import (
    Closing,
    Differentiable,
    differentiable,
)
from amprewrite.unit_scaling.graph.formula import Formula, extent, resolve
from amprewrite.unit_scaling.graph.loss import mark_loss
from amprewrite.unit_scaling.graph.residuals import Residual, find_residuals
from amprewrite.unit_scaling.graph.scales import Scale, ScalePlan
from amprewrite.unit_scaling.graph.unit_rule import UnitRule, of_region
from amprewrite.unit_scaling.graph.units import Edge, Unit, find_units

__all__ = [
    "Closing",
    "Differentiable",
    "Edge",
    "Formula",
    "Residual",
    "Scale",
    "ScalePlan",
    "Unit",
    "UnitRule",
    "assign",
    "cut_edges",
    "differentiable",
    "extent",
    "find_residuals",
    "find_units",
    "mark_loss",
    "of_region",
    "resolve",
]
