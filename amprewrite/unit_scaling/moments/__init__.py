"""Moments: how functions of unit Gaussian numbers change their scale."""

from amprewrite.unit_scaling.moments.model import Moments
from amprewrite.unit_scaling.moments.nonlinearities import (
    NONLINEARITIES,
    Nonlinearity,
    moments_of,
)
from amprewrite.unit_scaling.moments.quadrature import gaussian_moments
from amprewrite.unit_scaling.moments.softmax import SoftmaxMoments, softmax_moments

__all__ = [
    "NONLINEARITIES",
    "Moments",
    "Nonlinearity",
    "SoftmaxMoments",
    "gaussian_moments",
    "moments_of",
    "softmax_moments",
]
