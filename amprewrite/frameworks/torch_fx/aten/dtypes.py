"""The dtypes of torch by their neutral names."""

import torch


def dtype_name(dtype: torch.dtype) -> str:
    """Return the neutral name of a torch dtype."""
    return str(dtype).removeprefix("torch.")


def torch_dtype(name: str) -> torch.dtype:
    """Return the torch dtype of a neutral name."""
    return getattr(torch, name)
