"""Conversion between torch dtypes and dtype names."""

from typing import Any

import torch

from amprewrite.dtypes.fits import FEW, edges


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a torch dtype."""
    return str(dtype).removeprefix("torch.")


def torch_dtype(name: str) -> torch.dtype:
    """Return the torch dtype called ``name``."""
    return getattr(torch, name)


def edges_of(tensor: torch.Tensor) -> tuple[float, ...]:
    """Return the numbers of a constant that a narrow format has not.

    See :func:`amprewrite.dtypes.fits.edges`; of a table, the least and the greatest.
    Tensors of other classes or layouts have none.
    """
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    if not plain or tensor.layout is not torch.strided or tensor.device.type == "meta":
        return ()
    if not tensor.is_floating_point() or not tensor.numel():
        return ()
    values: Any = tensor.detach()
    table = values.numel() > FEW
    if table:
        ends: Any = torch.stack(torch.aminmax(values))
        values = ends.unique()
        table = len(values) > 1
    numbers: list[Any] = values.reshape(-1).tolist()
    return edges(numbers, table=table)
