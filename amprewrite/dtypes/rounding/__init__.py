"""Rounding of arrays to 8-bit floats, with the same bits in NumPy, JAX and torch."""

from amprewrite.dtypes.rounding.draws import uniform_draws
from amprewrite.dtypes.rounding.encode import saturating_cast
from amprewrite.dtypes.rounding.grid import quantise, quantise_by
from amprewrite.dtypes.rounding.scaling import quantise_scaled, scale_of

__all__ = [
    "quantise",
    "quantise_by",
    "quantise_scaled",
    "saturating_cast",
    "scale_of",
    "uniform_draws",
]
