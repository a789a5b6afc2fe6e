"""Recover the plain model of a converted one, with its current weights."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.torch_fx.compat import module_parts
from amprewrite.frameworks.torch_fx.derived.classes import ConvertedPart, programs_of
from amprewrite.frameworks.torch_fx.module.converted_module import ConvertedModule
from amprewrite.frameworks.torch_fx.module.moves import KeepsDtypes
from amprewrite.frameworks.torch_fx.module.snapshot import copied
from amprewrite.frameworks.torch_fx.module.state import lowered
from amprewrite.frameworks.torch_fx.plain.tree import (
    OTHERWISE,
    bound_attribute,
    copy_tree,
)


def original(model: Any) -> Any:
    """Return the plain model of a converted module; others as they are.

    Raises:
        UnsupportedError: A part of a converted module, or a wrapper around one; or its
            model cannot be copied.
    """
    programs = programs_of(model)
    if programs is not None:
        return programs.original(model)
    if isinstance(model, ConvertedModule):
        return _of_program(model)
    if isinstance(model, nn.Module):
        _refuse_related(model)
    return model


def keep_program(converted: ConvertedModule, model: nn.Module, *, shared: bool) -> None:
    """Store in ``converted`` the captured program it was made of, or a copy of it.

    Args:
        converted: The converted form of the program.
        model: The program as a module.
        shared: Whether its tensors are those of ``converted``; else the copy has
            tensors without values.
    """
    found: nn.Module | UnsupportedError = model
    if not shared:
        held = (*model.parameters(), *model.buffers())
        try:
            found = copy_tree(model, {id(t): _twin(t) for t in held})
        except UnsupportedError as error:  # raised when it is asked for
            found = error
    vars(converted)["_origin"] = _Origin(found, shared)


@dataclass(frozen=True)
class _Origin:
    """The program that was converted.

    Attributes:
        model: The program, or the reason why there is no copy of it.
        shared: Whether its tensors are those of the converted module.
    """

    model: nn.Module | UnsupportedError
    shared: bool


def _of_program(converted: ConvertedModule) -> nn.Module:
    """Return the program as it was, with the tensors of ``converted``."""
    origin: _Origin | None = vars(converted).get("_origin")
    if origin is None:
        msg = (
            f"this module was loaded from a pickle, which has the program and not the "
            f"model it was made from; {OTHERWISE}"
        )
        raise UnsupportedError(msg)
    if isinstance(origin.model, UnsupportedError):
        raise origin.model
    if origin.shared:
        return origin.model
    memo: dict[int, Any] = {}
    values: dict[int, Any] = {}
    for held, now in _pairs(origin.model, converted):
        if id(held) not in values:
            wide = now.dtype != held.dtype
            values[id(held)] = lowered(now, held.dtype) if wide else copied(now, memo)
    if reason := bound_attribute(origin.model):
        raise UnsupportedError(reason)
    return copy_tree(origin.model, values)


def _pairs(
    model: nn.Module, converted: nn.Module
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield the tensors of ``model``, each with that of ``converted`` in its place."""
    for path, part in module_parts.modules_by_path(model):
        here = converted.get_submodule(path)
        for kept in (module_parts.parameters, module_parts.buffers):
            for name, held in kept(part).items():
                now = kept(here).get(name)
                if held is not None and now is not None:
                    yield held, now


def _twin(held: torch.Tensor) -> torch.Tensor:
    """Return ``held`` on the meta device, without values."""
    with torch.no_grad():
        twin = torch.empty_like(held, device="meta")
    if isinstance(held, nn.Parameter):
        return type(held)(twin, requires_grad=held.requires_grad)
    return twin


def _refuse_related(model: nn.Module) -> None:
    """Refuse a part of a converted module, and a module that contains one.

    Raises:
        UnsupportedError: It is one of these.
    """
    if isinstance(model, (ConvertedPart, KeepsDtypes)):
        msg = (
            "this is a part of a converted module, which has the tensors of its part "
            "of the model alone; take the part of original(converted)"
        )
        raise UnsupportedError(msg)
    for path, part in module_parts.modules_by_path(model):
        if isinstance(part, ConvertedModule) or programs_of(part) is not None:
            msg = (
                f"this {type(model).__name__} holds a converted module, {path}; call "
                f"original() with that"
            )
            raise UnsupportedError(msg)
