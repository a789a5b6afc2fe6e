"""Accumulator dtypes of low contractions on a device, as a plan fixes them."""

from dataclasses import dataclass
from typing import Literal

OPERAND = "operand"
"""Accumulator of a derivative: the dtype of the operand that the gradient is for."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """Accumulator dtypes of low contractions, where a program can choose them.

    Attributes:
        accumulators: Whether contractions return their full-precision sums, to be
            rounded afterwards; otherwise their kernels round.
        derivative_accumulator: Dtype of the sums of their derivatives.
    """

    accumulators: bool = False
    derivative_accumulator: Literal["low", "full", "operand"] = OPERAND
