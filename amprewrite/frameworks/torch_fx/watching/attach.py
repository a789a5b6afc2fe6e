"""Calls of a torch module, seen by a hook before each."""

from threading import local
from typing import Any

import torch
from torch import nn

from amprewrite.frameworks.base import Attached, Watcher
from amprewrite.frameworks.torch_fx.compat.operators import in_transform
from amprewrite.frameworks.torch_fx.compat.pytrees import pytree
from amprewrite.frameworks.torch_fx.compat.tensor_internals import fake_mode_of
from amprewrite.frameworks.torch_fx.compat.threads import apart, is_capturing


def attach(model: nn.Module, watcher: Watcher) -> Attached:
    """Show the calls of a module to a watcher, each before it runs.

    A call that is compared waits, while a thread of its own gets copies of the
    arguments: modes of the caller (autocast, inference, no gradients) do not reach it.
    Calls within the comparison are not shown, nor are those that a compiler or a
    transformation of torch.func traces.

    Args:
        model: The module.
        watcher: Consumer of the calls.
    """
    comparing = local()

    def before(_model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.compiler.is_compiling() or getattr(comparing, "now", False):
            return
        if in_transform() or fake_mode_of(pytree.tree_leaves((args, kwargs))):
            return
        if is_capturing():  # as verify does with a monitored model
            return
        number = watcher.due()
        if not number:
            return

        def compare() -> Any:
            comparing.now = True  # in this thread, which ends with the comparison
            copies = pytree.tree_map(_copied, (args, kwargs))
            return watcher.compare(number, *copies)

        apart(compare)()

    untyped: Any = model
    handle = untyped.register_forward_pre_hook(before, with_kwargs=True)
    return Attached(model, handle.remove)


def _copied(leaf: Any) -> Any:
    """Return a tensor of the same values, that is no part of a graph."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return leaf.detach().clone().requires_grad_(leaf.requires_grad)
