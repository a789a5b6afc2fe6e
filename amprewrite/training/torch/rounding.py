"""Rounding of float32 tensors to bfloat16: nearest, stochastic, or with a residual.

Rounding to nearest loses an update below half of the weight's last bit: with 8 bits,
below 1/512 to 1/256 of the weight. Stochastic rounding is unbiased; a residual carries
the rounding error to the next step.
Sources: Gupta et al., Deep Learning with Limited Numerical Precision (arXiv
1502.02551); Zamirai et al., Revisiting BFloat16 Training (arXiv 2010.06192).
"""

import torch

LOW = torch.bfloat16
"""The dtype of low weights: float16 has no range for moments and small weights."""

DROPPED = 16
"""Bits of a float32 that a bfloat16 drops: 23 - 7 of its mantissa."""


def stochastic(full: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    """Return ``full`` rounded up or down, so that the mean over ``draws`` is ``full``.

    Values that bfloat16 represents are unchanged, infinities and NaN included. A value
    beyond its largest number becomes that number, not an infinity.

    Args:
        full: Float32.
        draws: Int32 of the same shape, uniform in [0, 2**16).
    """
    limit = torch.finfo(LOW).max
    held = torch.where(full.isfinite(), full.clamp(-limit, limit), full)
    bits = held.view(torch.int32)
    moved = bits + torch.where(full.isfinite(), draws, 0)  # carries into the kept bits
    cut = moved & -(1 << DROPPED)
    return torch.where(full.isfinite(), cut.view(torch.float32), full).to(LOW)


def split(full: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``full`` rounded to nearest, and the rounding error, both bfloat16.

    Their sum has at least 16 bits; the residual of an infinity or NaN is zero.

    Args:
        full: Float32.
    """
    near = full.to(LOW)
    left = full - near.to(torch.float32)
    return near, torch.where(left.isfinite(), left, 0).to(LOW)


def joined(near: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    """Return the float32 sum of the two parts from :func:`split`."""
    return near.to(torch.float32) + residual.to(torch.float32)
