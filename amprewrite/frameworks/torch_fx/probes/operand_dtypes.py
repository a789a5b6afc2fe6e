"""Operands of one graph's op converted to the dtypes of its twin's operands."""

from collections.abc import Callable
from typing import Any

import torch

from amprewrite.frameworks.torch_fx.compat.pytrees import pytree


def paired(
    shape: tuple[Any, Any], other: tuple[Any, Any], join: Callable[[Any, Any], Any]
) -> tuple[Any, Any]:
    """Return arguments of the structure ``shape``, each leaf joined with the other's.

    A part of another structure in ``other`` is joined with itself.
    """

    def pair(one: Any, two: Any) -> Any:
        leaves, spec = pytree.tree_flatten(one)
        values = pytree.tree_leaves(two)
        if len(values) != len(leaves):
            values = leaves
        return pytree.tree_unflatten(list(map(join, leaves, values)), spec)

    (args, kwargs), (others, named) = shape, other
    spare = [None] * len(args)
    return (
        [pair(one, two) for one, two in zip(args, [*others, *spare], strict=False)],
        {key: pair(one, named.get(key)) for key, one in kwargs.items()},
    )


def rounded(read: Any, exact: Any) -> Any:
    """Return a copy of ``exact`` in the dtype and layout of ``read``.

    If the program clamped large numbers to the range of its dtype (a mask of -3.4e38 in
    float16), the copy is clamped too.
    """
    if not isinstance(read, torch.Tensor):
        return read
    usable = isinstance(exact, torch.Tensor) and exact.shape == read.shape
    if not usable or read.layout != torch.strided:
        return read.clone()
    source = exact
    limits = torch.finfo(read.dtype) if read.is_floating_point() else None
    if limits and _exceeds(exact, limits.max) and bool(read.isfinite().all()):
        bounded = exact.clamp(limits.min, limits.max)
        source = torch.where(exact.isfinite(), bounded, exact)
    return torch.empty_like(read).copy_(source)


def unrounded(exact: Any, read: Any) -> Any:
    """Return ``read`` in the dtype of ``exact``; values but tensors unchanged."""
    if not isinstance(exact, torch.Tensor):
        return exact
    if not isinstance(read, torch.Tensor) or read.shape != exact.shape:
        return exact.clone()
    return read.to(exact.dtype, copy=True)


def _exceeds(tensor: torch.Tensor, limit: float) -> bool:
    if tensor.dtype.itemsize < 4 or not tensor.numel():  # noqa: PLR2004  # bytes: no wider
        return False
    linalg: Any = torch.linalg
    return not bool(linalg.vector_norm(tensor.flatten(), float("inf")) <= limit)
