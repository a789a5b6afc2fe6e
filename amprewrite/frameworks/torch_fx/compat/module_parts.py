"""Parts of modules: tensors, submodules and attributes, in the dicts of torch."""
# pyright: reportPrivateUsage=false

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


def hidden_buffers(module: nn.Module) -> set[str]:
    """Return the names of the buffers that are not part of ``state_dict``."""
    return module._non_persistent_buffers_set


def buffers(module: nn.Module) -> dict[str, torch.Tensor | None]:
    """Return the buffers of ``module`` itself, as a dict that can be changed.

    TorchScript's own buffers are out of reach.
    """
    return {} if isinstance(module, torch.jit.ScriptModule) else module._buffers


def parameters(module: nn.Module) -> dict[str, nn.Parameter | None]:
    """Return the parameters of ``module`` itself, as a dict that can be changed."""
    return module._parameters


def children(module: nn.Module) -> Mapping[str, nn.Module | None]:
    """Return the direct submodules, even if attributes shadow their names."""
    return module._modules


def modules_by_path(model: nn.Module) -> Iterable[tuple[str, nn.Module]]:
    """Return ``model`` and all its submodules, each under all of its paths."""
    untyped: Any = model
    return untyped.named_modules(remove_duplicate=False)


def share_state(module: nn.Module, model: nn.Module) -> None:
    """Share the parameters, buffers and submodules of ``model`` with ``module``."""
    share_tensors(module, model)
    module._modules = model._modules


def attributes_of(value: Any) -> dict[str, Any]:
    """Return the attributes of an object, as a dict that can be changed."""
    return value.__dict__


def share_tensors(module: nn.Module, model: nn.Module) -> None:
    """Make ``module`` hold its parameters and buffers in the dicts of ``model``."""
    module._parameters = model._parameters
    module._buffers = model._buffers
    module._non_persistent_buffers_set = model._non_persistent_buffers_set


def share_all_tensors(module: nn.Module, model: nn.Module) -> None:
    """Make ``module`` and its parts hold the tensors of ``model``, also later ones."""
    for path, part in modules_by_path(module):
        share_tensors(part, model.get_submodule(path))


def renew_flat_weights(module: nn.Module) -> None:
    """Make a recurrent layer's list of its parameters anew, after they were set."""
    if isinstance(module, nn.RNNBase):
        untyped: Any = module
        names: list[str] = untyped._flat_weights_names
        untyped._flat_weights = [getattr(module, name, None) for name in names]


class _CalledPlainly(nn.Module):
    """Module with the ``__call__`` of torch before that of another base."""

    __call__ = nn.Module.__call__

    def __init_subclass__(cls, **options: Any) -> None:
        """Make a class without the hook of the other base, which registers classes."""
        del options


def called_plainly(model: nn.Module) -> nn.Module:
    """Return ``model`` with torch's ``__call__``, if its class has one of its own.

    That of the class runs around the programs of a converted model, so that none of
    them has it. The result has the attributes of the model, and is another object.
    """
    kind: Any = type(model)
    programs = (torch.jit.ScriptModule, torch.fx.GraphModule)
    if kind.__call__ is nn.Module.__call__ or isinstance(model, programs):
        return model
    body = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    made: Any = object.__new__(type(kind)(kind.__name__, (_CalledPlainly, kind), body))
    made.__dict__ = model.__dict__
    return made


@contextmanager
def in_place(
    model: nn.Module, stand_in: Callable[[str, torch.Tensor, type[Any]], torch.Tensor]
) -> Generator[None]:
    """Replace the tensors of a model.

    Args:
        model: The model.
        stand_in: Returns the tensor in place of one, from its name, itself, and the
            type of its place, of parameters or of tensors. A tensor with several names
            has one for all.
    """
    before: list[tuple[dict[str, Any], str, Any, Any]] = []
    others: dict[int, torch.Tensor] = {}
    for path, part in modules_by_path(model):
        places: Any = ((nn.Parameter, parameters(part)), (torch.Tensor, buffers(part)))
        for kind, tensors in places:
            for name, tensor in tensors.items():
                if tensor is None:
                    continue
                full_name = f"{path}.{name}".lstrip(".")
                if id(tensor) not in others:
                    others[id(tensor)] = stand_in(full_name, tensor, kind)
                if others[id(tensor)] is not tensor:
                    before.append((tensors, name, tensor, others[id(tensor)]))
    try:
        for tensors, name, _, other in before:
            tensors[name] = other
        yield
    finally:
        for tensors, name, tensor, _ in before:
            tensors[name] = tensor
