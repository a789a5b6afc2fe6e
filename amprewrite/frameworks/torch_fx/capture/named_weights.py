"""Weights that a forward reads from a container, read by their names in a program."""

from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule

from amprewrite.errors import CaptureError
from amprewrite.frameworks.torch_fx.compat.tensor_internals import storage_identity
from amprewrite.frameworks.torch_fx.untouched.kinds import inside, space_of

_TORCHS = frozenset(vars(nn.Module()))
"""Attributes of every module."""


def read_by_name(module: GraphModule, model: nn.Module) -> None:
    """Replace constants of a program that are parameters or buffers of its model.

    torch.export traces the tensors of modules. A parameter that a forward reads from a
    list, a dict or a module that is not a submodule it lifts as a constant of the same
    memory, which has no gradient.

    Args:
        module: The program, changed in place.
        model: The model.

    Raises:
        CaptureError: A constant may be a parameter, which then has a gradient, or a
            detached alias of it, an attribute of the model, which has none.
    """
    constants = {
        name: memory
        for name, value in vars(module).items()
        if isinstance(value, torch.Tensor) and (memory := _memory(value))
    }
    if not constants:
        return
    tensors = [*module.named_parameters(), *module.named_buffers()]
    names = {_memory(tensor): name for name, tensor in tensors}
    shared = {name: (m, names[m]) for name, m in constants.items() if m in names}
    if not shared:
        return
    aliases = _themselves(shared, model)
    for node in module.graph.find_nodes(op="get_attr"):
        node.target = aliases.get(node.target, node.target)
    for name in aliases:
        delattr(module, name)
    module.recompile()


def _themselves(
    aliases: dict[str, tuple[Any, str]], model: nn.Module
) -> dict[str, str]:
    """Return the constants that are parameters or buffers, with their names.

    A detached alias of a parameter is another tensor: it has no gradient, and it stays
    when the parameter is replaced.

    Args:
        aliases: The memory of each constant, and the name of the tensor that shares it.
        model: The model.

    Raises:
        CaptureError: A container has a parameter that needs a gradient, and the model
            has an alias of it too: the constant may be either.
    """
    values = attribute_values(model)
    for value in [v for v in values.values() if isinstance(v, nn.Module)]:
        values.update((id(t), t) for t in (*value.parameters(), *value.buffers()))
    memories: dict[Any, set[int]] = {}
    for number, value in values.items():
        if isinstance(value, torch.Tensor) and (memory := _memory(value)):
            memories.setdefault(memory, set()).add(number)
    own = {_memory(t): t for t in (*model.buffers(), *model.parameters())}
    named: dict[str, str] = {}
    for constant, (memory, name) in aliases.items():
        tensor, numbers = own.get(memory), memories.get(memory, set())
        if tensor is None or id(tensor) not in numbers:
            continue
        if numbers == {id(tensor)}:
            named[constant] = name
        elif tensor.requires_grad:
            msg = (
                f"export keeps the parameter {name} as a constant where forward reads "
                "it from a container, or an alias of it, an attribute of the model"
            )
            raise CaptureError(msg)
    return named


def attribute_values(
    model: nn.Module, apart: frozenset[str] = frozenset()
) -> dict[int, Any]:
    """Return the values that are attributes of ``model`` or in them, by identity.

    They are in lists, tuples, sets and dicts, and attributes of objects; submodules,
    the values below a module, and what TorchScript holds are left out.

    Args:
        model: The model.
        apart: Names of further attributes to leave out.
    """
    parts = list(model.modules())
    own, values = set(map(id, parts)), dict[int, Any]()
    python = [part for part in parts if not isinstance(part, torch.jit.ScriptModule)]
    apart |= _TORCHS
    direct = [v for part in python for n, v in vars(part).items() if n not in apart]
    below: list[tuple[Any, bool]] = [(value, True) for value in direct]
    while below:
        value, attribute = below.pop()
        if id(value) in own or id(value) in values:
            continue
        values[id(value)] = value
        if not isinstance(value, nn.Module):
            below += [(inner, False) for inner in _inside(value, attribute=attribute)]
    return values


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


def _memory(tensor: torch.Tensor) -> Any:
    """Return the memory of a tensor, and its view of it; None if it has none."""
    plain = type(tensor) in (torch.Tensor, nn.Parameter)
    if not plain or tensor.layout != torch.strided or not tensor.numel():
        return None
    offset = tensor.storage_offset()
    place = storage_identity(tensor), offset, tensor.shape, tensor.stride()
    return (*place, tensor.dtype) if tensor.device.type != "meta" else None
