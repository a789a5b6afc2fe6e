"""The plain model of a converted one: the same tree, of the model's own classes."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from amprewrite.frameworks.torch_fx.compat import module_hooks, module_parts
from amprewrite.frameworks.torch_fx.module.low_marks import full_dtype, mark_low
from amprewrite.frameworks.torch_fx.module.snapshot import copied
from amprewrite.frameworks.torch_fx.module.state import lowered
from amprewrite.frameworks.torch_fx.plain.hidden import hidden_modules
from amprewrite.frameworks.torch_fx.plain.plain_class import (
    OWN_FORWARD,
    STATE,
    follow_assigned,
    plain_class,
)
from amprewrite.frameworks.torch_fx.plain.tree import copy_tree, scripted
from amprewrite.frameworks.torch_fx.plain.watched import Watched, unwatched


def plain_of(converted: nn.Module, *, shared: bool) -> nn.Module:
    """Return the plain form of a converted model or part, with its current tensors.

    Low tensors are widened to the dtypes of the model.

    Args:
        converted: The converted model, or a part of one.
        shared: Whether tensors in the dtypes of the model are shared, not copied, and
            modules that are held outside of the submodules.

    Raises:
        UnsupportedError: It cannot be copied.
    """
    memo: dict[int, Any] = {}
    values: dict[int, Any] = {}
    for held in (*converted.parameters(), *converted.buffers()):
        full = full_dtype(held)
        if held.dtype != full:
            values[id(held)] = lowered(held, full)
        else:
            values[id(held)] = held if shared else copied(held, memo)
    values.update(scripted(converted))
    if shared:
        values.update(hidden_modules(converted))
    made = copy_tree(converted, values, plain_class(type(converted)))
    _restore_forward(made)
    for _, part in module_parts.modules_by_path(made):
        module_parts.renew_flat_weights(part)
        make_plain(part)
    return without_conversion(made)


def make_plain(part: nn.Module) -> None:
    """Give a part of a converted model the class and the dicts of the model's own."""
    vars(part).pop(STATE, None)
    for name, held in list(vars(part).items()):
        if isinstance(held, Watched):
            vars(part)[name] = unwatched(name, held)
    kind = plain_class(type(part))
    if kind is not type(part):
        part.__class__ = kind


def _restore_forward(made: nn.Module) -> None:
    """Give a plain copy the ``forward`` that the model had on the object, if any.

    One that was set on the converted model is around its programs, not a part of them.
    """
    state = vars(made)
    state.pop("forward", None)
    if OWN_FORWARD in state:
        state["forward"] = state.pop(OWN_FORWARD)


def without_conversion(model: nn.Module) -> nn.Module:
    """Remove from a plain copy the hook by which a converted model follows loads."""
    hooks = module_hooks.load_hooks(model)
    for key in [key for key, hook in hooks.items() if hook is follow_assigned]:
        del hooks[key]
    return model


def named_tensors(model: nn.Module) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """Yield the dict, name and value of each parameter and buffer of all parts."""
    for _, kept, name, held in _tensors_by_path(model):
        yield kept, name, held


def _tensors_by_path(
    model: nn.Module,
) -> Iterator[tuple[str, dict[str, Any], str, Any]]:
    for path, part in module_parts.modules_by_path(model):
        for kept in (module_parts.parameters(part), module_parts.buffers(part)):
            for name, held in kept.items():
                if held is not None:
                    yield path, kept, name, held


def mark_as(made: nn.Module, dtypes: Iterable[torch.dtype]) -> None:
    """Record for the low tensors of a copy the dtypes of :func:`full_dtypes`."""
    for (_, _, held), full in zip(named_tensors(made), dtypes, strict=True):
        if held.dtype != full:
            mark_low(held, full)


Stored = dict[str, tuple[torch.dtype, torch.dtype]]
"""Tensors that are stored low, by name: that dtype, and the dtype in the model."""


def remember_low(model: nn.Module, known: Stored) -> None:
    """Record the tensors that are stored low, and mark those that replaced such ones.

    A method of the model may make a tensor from a low one, with its dtype: a table of
    embeddings of another size.

    Args:
        model: The converted model.
        known: The record, which is extended.
    """
    for path, _, name, held in _tensors_by_path(model):
        full_name, full = f"{path}.{name}".lstrip("."), full_dtype(held)
        if held.dtype != full:
            known[full_name] = held.dtype, full
        elif full_name in known and known[full_name][0] == held.dtype:
            mark_low(held, known[full_name][1])


def full_dtypes(model: nn.Module) -> Iterator[torch.dtype]:
    """Yield the dtype in the plain model of each tensor of :func:`named_tensors`."""
    for _, _, held in named_tensors(model):
        yield full_dtype(held)
