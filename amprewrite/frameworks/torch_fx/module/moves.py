"""Moves of converted modules: devices and memory formats, but no other dtypes."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.torch_fx.aten.ops import dtype_name
from amprewrite.frameworks.torch_fx.compat import module_parts
from amprewrite.frameworks.torch_fx.module.low_marks import full_dtype, mark_low


class KeepsDtypes(nn.Module):
    """A module with tensors of fixed dtypes: those that its program reads.

    ``half()``, ``double()``, ``to(dtype)`` and other calls that would change a dtype,
    of this module or of a module around it, raise before any of its tensors is changed.
    """

    def _apply(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Apply ``fn`` to all tensors, as the class of the module does.

        Its arguments may differ from those of ``nn.Module``: a metric of torchmetrics
        takes the names of states to leave out.

        Raises:
            UnsupportedError: It would change a dtype.
        """
        refuse_other_dtypes(self, fn)
        held = (module_parts.parameters(self), module_parts.buffers(self))
        full = [
            (kept, name, full_dtype(tensor))
            for kept in held
            for name, tensor in kept.items()
            if tensor is not None
        ]
        above: Any = super()  # its stubs say nothing of ``fn``
        moved = above._apply(fn, *args, **kwargs)  # noqa: SLF001  # the method of nn.Module that this one overrides
        for kept, name, dtype in full:
            tensor = kept.get(name)
            if tensor is not None and tensor.dtype != dtype:
                mark_low(tensor, dtype)  # buffers are made anew on another device
        return moved


def refuse_other_dtypes(module: nn.Module, move: Callable[..., Any]) -> None:
    """Refuse a move that changes a dtype, after trying it on empty tensors.

    Raises:
        UnsupportedError: A tensor of ``module`` would get another dtype.
    """
    held = (*module.parameters(), *module.buffers())
    for dtype, device in {(t.dtype, t.device): None for t in held}:
        moved = move(torch.empty(0, dtype=dtype, device=device))
        if isinstance(moved, torch.Tensor) and moved.dtype != dtype:
            have, want = dtype_name(dtype), dtype_name(moved.dtype)
            msg = (
                f"a converted module cannot be cast from {have} to {want}: its program "
                f"has a planned dtype for every tensor; convert the original in that "
                f"dtype instead, amprewrite.convert(model.to(torch.{want}), ...), or "
                f"with a policy whose low or full dtype it is; .to(device) works"
            )
            raise UnsupportedError(msg)
