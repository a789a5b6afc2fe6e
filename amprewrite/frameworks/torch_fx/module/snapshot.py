"""Copies of a model's tensors, for a conversion that is independent of the model.

A program converted for inference reads some weights from low copies. If the others were
the model's own tensors, a change of the model would lead to a mixture of old and new
weights; so they are copied too.
"""

import copy
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule
from torch.nn.parameter import is_lazy

from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.torch_fx.untouched.kinds import inside
from amprewrite.frameworks.torch_fx.untouched.rebuild import rebuilt


def copied(held: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
    """Return a copy of ``held`` with a storage of its own; a parameter stays one.

    Tensors that share a storage have copies that share one, as in a deep copy.

    Args:
        held: The tensor.
        memo: Copies made so far, as ``copy.deepcopy`` keeps them.
    """
    # Tensors made in inference mode can be neither captured nor trained later.
    with torch.inference_mode(mode=False), torch.no_grad():
        value = held.detach()
        strided = value.layout == torch.strided  # others have several storages, or none
        made = copy.deepcopy(value, memo) if strided else value.clone()
    if isinstance(held, nn.Parameter):
        return nn.Parameter(made, requires_grad=held.requires_grad)
    return made


def own_tensors(
    model: nn.Module, module: GraphModule, low: Mapping[int, torch.Tensor]
) -> dict[int, torch.Tensor]:
    """Return a copy of every tensor that a program reads, by the original's identity.

    Args:
        model: The model.
        module: Its capture, which has constants that the model's state does not hold.
        low: Low tensors by the identity of the full ones; they are copies already.
    """
    made, memo = dict(low), dict[int, Any]()
    for held in (*model.parameters(), *model.buffers(), *_read(module)):
        if id(held) not in made:
            made[id(held)] = copied(held, memo)
    return made


def _read(module: GraphModule) -> Iterator[torch.Tensor]:
    """Yield the tensors that the graph of ``module`` reads as attributes."""
    for node in module.graph.find_nodes(op="get_attr"):
        path, _, name = str(node.target).rpartition(".")
        held = getattr(module.get_submodule(path), name)
        if isinstance(held, torch.Tensor):
            yield held


def snapshot(model: nn.Module) -> nn.Module:
    """Return a deep copy of ``model``, with its mode, attributes and hooks.

    Raises:
        UnsupportedError: The model holds something that cannot be copied.
    """
    try:
        return deep_copy(model, {})
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        msg = (
            f"{type(model).__name__} cannot be copied ({type(error).__name__}: "
            f"{reason}), and a module that is converted for inference and captured at "
            f"its first call runs a copy of the model, so that it is not half changed "
            f"with it; convert with args, or with training=True, which shares the "
            f"parameters of the model"
        )
        raise UnsupportedError(msg) from error


def _values(part: nn.Module) -> Iterator[Any]:
    """Yield the attributes of a part, and the items of containers among them."""
    for held in vars(part).values():
        yield held
        yield from inside(held)  # a recurrent layer's weights


def deep_copy(model: nn.Module, memo: dict[int, Any], state: Any = None) -> Any:
    """Return a deep copy of ``model``, or of its state.

    Errors of ``copy.deepcopy`` pass through.

    Tensors that ``copy.deepcopy`` refuses are copied otherwise: results of autograd
    detached, compressed ones by ``clone``.

    Args:
        model: The model.
        memo: Replacements in the copy for objects of the model, by identity.
        state: The state to copy; None to copy the model.
    """
    plain = (held for part in model.modules() for held in _values(part))
    for held in (*plain, *model.buffers(), *model.parameters()):
        if not isinstance(held, torch.Tensor) or is_lazy(held) or id(held) in memo:
            continue
        if held.grad_fn is not None or held.layout != torch.strided:
            memo[id(held)] = copied(held, memo)
    before = dict(memo)
    with torch.inference_mode(mode=False):  # a copy made inside cannot be captured
        try:
            return copy.deepcopy(model if state is None else state, memo)
        except Exception:
            memo.clear()
            memo.update(before)
            if not _rebuild(model, memo):
                raise
            return copy.deepcopy(model if state is None else state, memo)


def _rebuild(model: nn.Module, memo: dict[int, Any]) -> bool:
    """Copy the attributes of a model that ``copy.deepcopy`` refuses, if possible.

    Args:
        model: The model.
        memo: Receives the copies.

    Returns:
        Whether there is one.
    """
    parts = {id(part): part for part in model.modules()}
    own = vars(nn.Module()).keys()
    values = [v for p in parts.values() for n, v in vars(p).items() if n not in own]
    rebuilds = False
    for value in values:
        try:
            copy.deepcopy(value, {**parts, **memo})
        except Exception:  # noqa: BLE001  # whatever the attributes of users raise
            with suppress(Exception):
                memo[id(value)] = rebuilt(value, memo)
                rebuilds = True
    return rebuilds
