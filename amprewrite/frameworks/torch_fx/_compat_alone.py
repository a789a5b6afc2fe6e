"""Capture a model by dynamo without a function that other models share."""
# pyright: reportPrivateUsage=false

from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn


def compiled(model: nn.Module, backend: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``model`` captured by dynamo and compiled by ``backend``.

    Dynamo keeps captures with the code of the outermost function and gives up on that
    code after eight. A module of torch itself is compiled through a function that all
    modules share, those of the user among them, and all models of a class share their
    ``forward``: it is copied here. Of a copy dynamo knows the globals; those of an
    inner function it imports by the name of its file's module, which a script that was
    run by its path does not have.
    """
    bound: Any = model.forward  # it may have been replaced by any callable
    forward = getattr(bound, "__func__", None)
    own = isinstance(forward, FunctionType) and bound.__self__ is model
    if own and not forward.__module__.startswith("torch.") and not _hooked(model):
        run: Callable[..., Any] = MethodType(_copied(forward), model)
    else:
        run = _copied(_calling(model))
    untyped: Any = torch
    return untyped.compile(run, backend=backend)


def _calling(model: nn.Module) -> Callable[..., Any]:
    self = model  # by which name paths in the captured graph begin

    def call(*args: Any, **kwargs: Any) -> Any:
        return self(*args, **kwargs)

    return call


def _copied(function: Any) -> Any:
    """Return a function that has a code object of its own."""
    made = FunctionType(
        function.__code__.replace(),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def _hooked(model: nn.Module) -> bool:
    """Whether a call of ``model`` is more than its ``forward``."""
    untyped: Any = model
    forwards = (untyped._forward_hooks, untyped._forward_pre_hooks)
    return any((*forwards, untyped._backward_hooks, untyped._backward_pre_hooks))
