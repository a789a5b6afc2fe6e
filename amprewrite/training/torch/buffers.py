"""Copies of a model's buffers, restored when a step is skipped."""

from typing import Any

import torch
from torch import nn

from amprewrite.training.torch import _compat


class Buffers:
    """The values of a model's buffers before the first forward pass of a step.

    Running statistics and counters change in the forward pass, before it is known
    whether the step is finite. Buffers that the first step (for which the host waits)
    and later writes leave unchanged, such as tables and masks, are not copied. (Batch
    norms change their statistics without counting it as a write, so that counting
    writes is not enough.) A forward pass traced by torch.compile has the copies of all
    buffers in its program: writes cannot be counted there.
    """

    def __init__(self, model: nn.Module) -> None:
        """Register a hook that copies the buffers of ``model`` in train mode."""
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] | None = None
        self._fixed: dict[int, int] = {}  # by identity: writes when it was looked at
        self._looked = False
        model.register_forward_pre_hook(self._keep)

    def _keep(self, model: nn.Module, args: Any) -> None:
        del args
        if self._kept is None and model.training:
            self._kept = [
                (buffer, buffer.detach().clone())
                for buffer in model.buffers()
                if torch.compiler.is_compiling()
                or self._fixed.get(id(buffer)) != _compat.version(buffer)
            ]

    def settle(self, skipped: torch.Tensor) -> None:
        """End a step; restore the buffers if it was skipped.

        Args:
            skipped: Boolean scalar, on any device; the host does not wait for it.
        """
        with torch.no_grad():
            for buffer, copy in self._kept or ():
                if not self._looked and torch.equal(buffer, copy):
                    self._fixed[id(buffer)] = _compat.version(buffer)
                else:
                    put_back = skipped.to(buffer.device, non_blocking=True)
                    buffer.copy_(torch.where(put_back, copy, buffer))
        self._looked = self._looked or self._kept is not None
        self._kept = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle, without tensors."""
        return {"_kept": None, "_fixed": dict[int, int](), "_looked": False}
