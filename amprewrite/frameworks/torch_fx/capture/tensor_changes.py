"""Detect whether a tensor changed since a copy of it was made."""

import weakref
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from amprewrite.frameworks.torch_fx.compat.tensor_internals import (
    storage_identity,
    writes,
)


class Mark:
    """The state of a tensor: its identity, its number of writes, and its memory.

    Detected are writes that torch counts (in place, by an optimizer,
    ``load_state_dict``), another tensor, and other memory (``weight.data = other``).
    Not detected are writes through ``weight.data``, NumPy or a pointer: torch does not
    count them.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        """Record the state of ``tensor``; neither it nor its memory is kept alive."""
        self._tensor, self._writes = (
            weakref.ref(tensor),
            writes(tensor),
        )
        # A weak reference, so that the memory is freed and its identity is not reused.
        self._memory: Any = None
        if tensor.layout == torch.strided:
            self._memory = StorageWeakRef(tensor.untyped_storage())

    def holds(self, tensor: torch.Tensor) -> bool:
        """Return whether ``tensor`` is unchanged since it was recorded."""
        if self._tensor() is not tensor or self._writes != writes(tensor):
            return False
        identity = None if self._memory is None else self._memory.cdata
        return identity is None or identity == storage_identity(tensor)
