"""The buffers of a model, to be put back where a step is skipped."""

from typing import Any

import torch
from torch import nn

from amprewrite.training.torch import _compat


class Buffers:
    """What a model's buffers were before the first forward pass of a step.

    Running statistics and counters change in the forward pass, before it is known
    whether the step is finite. What the first step, for which the host waits, and no
    write since has changed is not copied: tables and masks. (Batch norms change their
    statistics without counting it as a write, so that writes alone do not tell.)
    A forward pass that torch.compile traces has the copies in its program, of all
    buffers: how often one was written to cannot be asked there.
    """

    def __init__(self, model: nn.Module) -> None:
        """Watch the calls of ``model`` in train mode."""
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
        """End a step; put the buffers back if it was skipped.

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
        """Return what is pickled with the model that calls this: no tensors."""
        return {"_kept": None, "_fixed": dict[int, int](), "_looked": False}
