"""Conversion between torch dtypes and dtype names."""

import torch


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a torch dtype."""
    return str(dtype).removeprefix("torch.")


def torch_dtype(name: str) -> torch.dtype:
    """Return the torch dtype called ``name``."""
    return getattr(torch, name)
