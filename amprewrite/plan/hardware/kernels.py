"""What the kernels of low contractions hand over on a device, as a plan fixes it."""

from dataclasses import dataclass
from typing import Literal

OPERAND = "operand"
"""Sums of a derivative in the dtype of the operand whose gradient they are."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """What low contractions hand over on a device, where a program can choose.

    Attributes:
        accumulators: Whether they hand over their full sums, to be rounded afterwards;
            otherwise they round themselves.
        derivative_accumulator: What those of derivatives hand over.
    """

    accumulators: bool = False
    derivative_accumulator: Literal["low", "full", "operand"] = OPERAND
