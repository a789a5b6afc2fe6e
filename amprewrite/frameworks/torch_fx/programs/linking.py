"""Programs that read the tensors of a converted model.

A program has containers under the names of the model's parts. They hold the very dicts
in which the parts of the converted model hold their tensors, so that whatever replaces
or writes to a tensor there (an optimizer, ``load_state_dict``, ``functional_call``,
``fully_shard``, a move to a device) does so for all programs.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from amprewrite.errors import warn
from amprewrite.frameworks.torch_fx.aten.ops import torch_dtype
from amprewrite.frameworks.torch_fx.compat import module_parts
from amprewrite.frameworks.torch_fx.module.converted_module import ConvertedModule
from amprewrite.frameworks.torch_fx.module.lazy_module import LazyModule
from amprewrite.frameworks.torch_fx.module.low_marks import full_dtype, mark_low
from amprewrite.frameworks.torch_fx.plain.plain_model import named_tensors


def link(
    program: ConvertedModule,
    owner: nn.Module,
    others: Iterable[ConvertedModule],
    root: nn.Module,
    *,
    stores: bool = True,
) -> None:
    """Make a program read the tensors of ``owner``, and store weights as it wants.

    A weight that the program stores low is stored low in the model too, unless another
    program reads it as it is: then the program gets a copy of its own.

    Args:
        program: The program of the plain form of ``owner``.
        owner: The converted model, or a part of one.
        others: The other programs of the model.
        root: The converted model.
        stores: Whether weights of the model may be stored low.
    """
    in_use = {id(held) for other in others for held in other.tensors_read()}
    source = program.model if isinstance(program, LazyModule) else program
    read = None if source is not program else set(program.names_read())
    own: dict[str, torch.Tensor] = {}
    stored: dict[int, torch.Tensor] = {}
    for path, part in module_parts.modules_by_path(owner):
        if isinstance(part, torch.jit.ScriptModule):
            continue
        holder = source.get_submodule(path)
        differ = list(_different(part, holder))
        for name, held, wanted in differ:
            full_name = f"{path}.{name}".lstrip(".")
            if read is not None and full_name not in read:
                continue
            if not stores or id(held) in in_use or source is not program:
                own[full_name] = wanted
            else:
                stored[id(held)] = wanted
        if not differ or source is program:
            module_parts.share_tensors(holder, part)
    if stored:
        _store(root, stored)
    program.linked(own)
    _tell_rounded(program, own)


def _different(
    part: nn.Module, holder: nn.Module
) -> Iterator[tuple[str, torch.Tensor, Any]]:
    """Yield the tensors that a program has in other dtypes: name, theirs and its."""
    for kept in (module_parts.parameters, module_parts.buffers):
        for name, held in kept(part).items():
            wanted = kept(holder).get(name)
            if held is not None and wanted is not None and wanted.dtype != held.dtype:
                yield name, held, wanted


def _tell_rounded(program: ConvertedModule, own: Mapping[str, torch.Tensor]) -> None:
    """Warn of weights that a program reads in full, and that are stored low."""
    if not own or isinstance(program, LazyModule) or not program.decided.full:
        return
    full = torch_dtype(program.decided.full)
    names = [name for name, held in own.items() if held.dtype == full]
    if names:
        more = f" (and {len(names) - 1} more)" if names[1:] else ""
        text = (
            f"this call reads {names[0]} in {program.decided.full}{more}, which an "
            f"earlier program stores low: it gets rounded values; convert with args= "
            f"of this call first, or with training=True, which keeps all weights"
        )
        program.note(text)
        warn(text)


def _store(root: nn.Module, stored: Mapping[int, torch.Tensor]) -> None:
    """Replace tensors of a model, under all of their names, by low ones."""
    for kept, name, held in list(named_tensors(root)):
        if id(held) in stored:
            mark_low(stored[id(held)], full_dtype(held))
            kept[name] = stored[id(held)]
    for _, part in module_parts.modules_by_path(root):
        module_parts.renew_flat_weights(part)


def tensors_of(program: ConvertedModule, model: nn.Module) -> dict[int, Any]:
    """Return the tensors of a program by the identity of the model's in their places.

    Args:
        program: The program.
        model: The model that it was captured from.
    """
    found: dict[int, Any] = {}
    for path, part in module_parts.modules_by_path(model):
        holder = program.get_submodule(path)
        for kept in (module_parts.parameters, module_parts.buffers):
            for name, held in kept(part).items():
                if held is not None and id(held) not in found:
                    made: Any = kept(holder)[name]
                    if made.dtype != held.dtype:
                        mark_low(made, held.dtype)
                    found[id(held)] = made
    return found
