"""Scales of every tensor of a model, forward and backward."""

from amprewrite.unit_scaling.tracking.rows import Cell, ScaleRow
from amprewrite.unit_scaling.tracking.run import track_scales
from amprewrite.unit_scaling.tracking.scales import Scale, Tracked
from amprewrite.unit_scaling.tracking.table import ScaleTable
from amprewrite.unit_scaling.tracking.tracks import Tracks

__all__ = [
    "Cell",
    "Scale",
    "ScaleRow",
    "ScaleTable",
    "Tracked",
    "Tracks",
    "track_scales",
]
