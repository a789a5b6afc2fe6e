"""Memory, gradient and hooks of the tensors of a model, to be put back."""

from typing import Any

import torch
from torch.nn.parameter import is_lazy

from amprewrite.frameworks.torch_fx.compat import tensor_internals
from amprewrite.frameworks.torch_fx.untouched.contents import Content
from amprewrite.frameworks.torch_fx.untouched.kinds import DICT

_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
"""Attributes of tensors that hold their hooks, or None."""


class TensorState:
    """All of a tensor but its values: where these are, its gradient, its hooks.

    Attributes:
        tensor: The tensor.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        """Record the state; the tensor and its memory are kept alive.

        Args:
            tensor: A tensor of which :func:`has_state` is true.
        """
        self.tensor: Any = tensor
        self._writes = tensor_internals.writes(tensor)
        with torch.no_grad():
            self._alias = tensor.detach()
        self._place = self._read_place()
        self._trains = tensor.requires_grad
        self._grad = tensor.grad if tensor.is_leaf else None
        self._hooks = {name: getattr(tensor, name, None) for name in _HOOKS}
        spaces = vars(tensor), *filter(None, self._hooks.values())
        self._contents = [Content(space, DICT) for space in spaces]

    def _read_place(self) -> tuple[Any, ...]:
        tensor = self.tensor
        where = tensor_internals.storage_identity(tensor), tensor.storage_offset()
        return *where, tensor.shape, tensor.stride(), tensor.dtype

    def restore(self) -> None:
        """Put the state back where it is another one now."""
        tensor = self.tensor
        if self._read_place() != self._place:
            tensor.data = self._alias
        if tensor.is_leaf:
            if tensor.requires_grad != self._trains:
                tensor.requires_grad_(self._trains)
            if tensor.grad is not self._grad:
                tensor.grad = self._grad
        for name, hooks in self._hooks.items():
            if getattr(tensor, name, None) is not hooks:
                setattr(tensor, name, hooks)
        for content in self._contents:
            content.restore()

    def forget_writes(self) -> None:
        """Put back how often the tensor was written to, after its values."""
        if not self.tensor.is_inference():
            tensor_internals.set_writes(self.tensor, self._writes)


def has_state(tensor: torch.Tensor) -> bool:
    """Return whether the state of a tensor can be recorded: it has memory here."""
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    plain = plain and not is_lazy(tensor) and tensor.layout is torch.strided
    return plain and not tensor_internals.is_transformed(tensor)


def has_memory(tensor: torch.Tensor, memory: torch.UntypedStorage) -> bool:
    """Return whether the values of a tensor are in ``memory``."""
    now = tensor_internals.storage_identity(tensor)
    return now == tensor_internals.memory_identity(memory)
