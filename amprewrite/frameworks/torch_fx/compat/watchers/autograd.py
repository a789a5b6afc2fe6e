"""Custom autograd functions and hooks on saved tensors, as a model applies them.

Models bind the functions that apply them once and under any name (``ste = F.apply``,
``from torch.utils.checkpoint import checkpoint``), so that replacing those misses them;
and torch moves what these call from release to release. Each watcher rests on a step
that every release takes: it looks up the public ``forward`` of the function, and enters
the public class of the hooks.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils.checkpoint

from amprewrite.frameworks.torch_fx.compat.threads import replaced

LOOKED_UP = "forward"
"""Attribute of its class that an autograd function needs to be applied."""


@contextmanager
def noting_functions(note: Callable[[type], None]) -> Generator[None]:
    """Call ``note`` with the class whenever a custom autograd function is applied.

    It is called where torch looks up the function's ``forward``: at least once for each
    call of ``apply``, and where a model itself reads or calls the ``forward``.

    Args:
        note: Called in this thread alone.
    """
    kind: Any = type(torch.autograd.Function)
    look_up = kind.__getattribute__

    def noted(function: Any, name: str) -> Any:
        if name == LOOKED_UP:
            note(function)
        return look_up(function, name)

    with replaced(kind, "__getattribute__", noted):
        yield


@contextmanager
def noting_saved_tensors(note: Callable[[type], None]) -> Generator[None]:
    """Call ``note`` with the class whenever hooks on saved tensors are entered.

    They are ``torch.autograd.graph.saved_tensors_hooks``, and the activation
    checkpoints without re-entrance that derive from it.

    Args:
        note: Called in this thread alone.
    """
    kind: Any = torch.autograd.graph.saved_tensors_hooks
    enter = kind.__enter__

    def noted(hooks: object) -> Any:
        note(type(hooks))
        return enter(hooks)

    with replaced(kind, "__enter__", noted):
        yield


def is_checkpoint(kind: type) -> bool:
    """Return whether a class that was noted is of an activation checkpoint of torch."""
    return kind.__module__ == torch.utils.checkpoint.__name__
