"""Formats inside contractions: the table ``[contract]`` of a policy."""

from dataclasses import dataclass
from typing import Literal

Scaling = Literal["none", "current"]
"""Scale of a quantised tensor: none, or one from its own largest number."""

Kernel = Literal["emulated", "auto", "scaled_mm"]
"""Kernel of a quantised product, see :class:`Contract`."""


@dataclass(frozen=True, slots=True)
class Contract:
    """Number formats to which contractions round operands and gradients.

    Values between ops stay in the dtypes of the policy: the formats are those inside of
    contractions.

    Attributes:
        forward: Format of the operands, in the forward pass and as the backward pass
            reads them; empty if they are not rounded.
        backward: Format of the gradient that arrives; empty if it is not rounded.
        scaling: ``current``: each tensor times a power of two, by which its largest
            number comes near that of the format, and back. ``none``: no scale.
        spare_residual: Whether the last contractions before the addition of a residual
            branch are left out: their operands grow in training.
            Source: u-muP, arXiv 2407.17465, section 4.2.
        kernel: ``emulated``: operands are rounded, and multiplied in the dtype that
            they are stored in, on any device. ``scaled_mm``: matrix products of torch
            by its kernel for 8 bits; a device without one is refused. ``auto``: the
            kernel where a CUDA device has one, else emulated; sums may then be in
            another order on another device.
    """

    forward: str = ""
    backward: str = ""
    scaling: Scaling = "none"
    spare_residual: bool = False
    kernel: Kernel = "emulated"

    def __bool__(self) -> bool:
        """Return whether anything is rounded."""
        return bool(self.forward or self.backward)
