"""Modules that a model holds outside of its submodules: in a list, a dict, an object.

Such a module is kept out of ``parameters()``, as a teacher whose weights are an average
of the model's. A captured program has its weights as constants.
"""

from collections.abc import Collection, Iterable

import torch
from torch import nn

from amprewrite.frameworks.torch_fx.capture.named_weights import attribute_values
from amprewrite.frameworks.torch_fx.capture.tensor_changes import Samples
from amprewrite.frameworks.torch_fx.compat.tensor_internals import (
    storage_identity,
    writes,
)
from amprewrite.frameworks.torch_fx.plain.plain_class import STATE


def hidden_modules(model: nn.Module) -> dict[int, nn.Module]:
    """Return the modules that are attributes of ``model`` or in them, by identity.

    They are in lists, tuples, sets and dicts, and attributes of objects; those that are
    submodules too are left out, and what TorchScript holds.

    Args:
        model: The model.
    """
    values = attribute_values(model, apart=frozenset({STATE})).items()
    return {number: v for number, v in values if isinstance(v, nn.Module)}


class HiddenTensors:
    """The tensors and modes of hidden modules, to be compared later.

    Writes that torch does not count (through ``data``, by NumPy) are seen by samples,
    as those to other plain tensors. A tensor that the model has too is compared by
    identity alone, because programs read it by name.
    """

    def __init__(self, modules: Iterable[nn.Module], own: Collection[int]) -> None:
        """Record their state.

        Args:
            modules: The hidden modules.
            own: Identities of the parameters and buffers of the model.
        """
        self._modules, self._own = list(modules), own
        self._tensors = list(self._now())  # kept alive, so that no identity is reused
        self._state = self._read()
        self._samples = Samples(t for t in self._tensors if id(t) not in own)

    def hold(self) -> bool:
        """Return whether nothing has changed."""
        return self._read() == self._state and self._samples.hold()

    def _now(self) -> Iterable[torch.Tensor]:
        for module in self._modules:
            yield from module.parameters()
            yield from module.buffers()

    def _read(self) -> list[object]:
        modes = [part.training for m in self._modules for part in m.modules()]
        return [*modes, *map(self._state_of, self._now())]

    def _state_of(self, tensor: torch.Tensor) -> tuple[object, ...]:
        if id(tensor) in self._own:
            return id(tensor), tensor.requires_grad
        return id(tensor), writes(tensor), _memory(tensor), tensor.requires_grad

    def __eq__(self, other: object) -> bool:
        """Return whether the state was the same."""
        return (
            isinstance(other, HiddenTensors)
            and self._state == other._state
            and self._samples.are_like(other._samples)
        )

    def __hash__(self) -> int:
        """Return the number of tensors."""
        return len(self._tensors)


def _memory(tensor: torch.Tensor) -> int:
    return storage_identity(tensor) if tensor.layout == torch.strided else 0
