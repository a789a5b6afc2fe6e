"""Marks on tensors that are stored low: the dtype that they have in the model."""

import torch

_FULL = "_amprewrite_full"
"""Attribute of a low tensor: the dtype that it has in the model."""


def mark_low(tensor: torch.Tensor, full: torch.dtype) -> None:
    """Record the dtype that a low tensor has in the plain model."""
    setattr(tensor, _FULL, full)


def full_dtype(tensor: torch.Tensor) -> torch.dtype:
    """Return the dtype that a tensor of a converted model has in the plain model."""
    return getattr(tensor, _FULL, tensor.dtype)
