"""Exponents of the numbers of a run: weights, activations and their gradients.

Source of the pictures: Micikevicius et al., Mixed Precision Training (arXiv
1710.03740), figures 2 and 3.
"""

from amprewrite.measure.exponents.histogram import ExponentHistogram
from amprewrite.measure.exponents.rows import KINDS, Exponents, Kind, Shares

__all__ = ["KINDS", "ExponentHistogram", "Exponents", "Kind", "Shares"]
