"""Modules that a model holds outside of its submodules: in a list, a dict, an object.

Such a module is kept out of ``parameters()``, as a teacher whose weights are an average
of the model's. A captured program has its weights as constants.
"""

from collections.abc import Iterable
from types import FunctionType
from typing import Any

import torch
from torch import nn

from amprewrite.frameworks.torch_fx.capture.tensor_changes import Samples
from amprewrite.frameworks.torch_fx.compat.tensor_internals import (
    storage_identity,
    writes,
)
from amprewrite.frameworks.torch_fx.plain.plain_class import STATE
from amprewrite.frameworks.torch_fx.untouched.kinds import (
    inside,
    space_of,
)

_TORCHS = frozenset(vars(nn.Module())) | {STATE}
"""Attributes of every module, and that of converted ones."""


def hidden_modules(model: nn.Module) -> dict[int, nn.Module]:
    """Return the modules that are attributes of ``model`` or in them, by identity.

    They are in lists, tuples, sets and dicts, and attributes of objects; those that are
    submodules too are left out, and what TorchScript holds.

    Args:
        model: The model.
    """
    parts = list(model.modules())
    own, found, seen = set(map(id, parts)), dict[int, nn.Module](), set[int]()
    python = [part for part in parts if not isinstance(part, torch.jit.ScriptModule)]
    held = [v for part in python for n, v in vars(part).items() if n not in _TORCHS]
    below: list[tuple[Any, bool]] = [(value, True) for value in held]
    while below:
        value, attribute = below.pop()
        if id(value) in own or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, nn.Module):
            found[id(value)] = value
        else:
            below += [(inner, False) for inner in _inside(value, attribute=attribute)]
    return found


def _inside(value: Any, *, attribute: bool) -> list[Any]:
    """Return the items of a container, and the attributes of an attribute."""
    items = inside(value)
    if items or not attribute or not _is_users(value):
        return items
    return list((space_of(value) or {}).values())


def _is_users(value: object) -> bool:
    kind = type(value)
    known = issubclass(kind, (torch.Tensor, FunctionType, type))
    return not known and not kind.__module__.startswith("torch")


class HiddenTensors:
    """The tensors and modes of hidden modules, to be compared later.

    Writes that torch does not count (through ``data``, by NumPy) are seen by samples,
    as those to other plain tensors.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        """Record their state."""
        self._modules = list(modules)
        self._tensors = list(self._now())  # kept alive, so that no identity is reused
        self._state = self._read()
        self._samples = Samples(self._tensors)

    def hold(self) -> bool:
        """Return whether nothing has changed."""
        return self._read() == self._state and self._samples.hold()

    def _now(self) -> Iterable[torch.Tensor]:
        for module in self._modules:
            yield from module.parameters()
            yield from module.buffers()

    def _read(self) -> list[object]:
        modes = [part.training for m in self._modules for part in m.modules()]
        return [
            *modes,
            *((id(t), writes(t), _memory(t), t.requires_grad) for t in self._now()),
        ]

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
