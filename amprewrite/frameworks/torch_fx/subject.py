"""The model of a conversion with its request, and the facts that follow from both."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
from torch import nn
from torch.fx import GraphModule

from amprewrite.frameworks.base import Request
from amprewrite.frameworks.torch_fx.capture.program import Model, is_program
from amprewrite.frameworks.torch_fx.module.moves import KeepsDtypes

_ALONE = (KeepsDtypes, GraphModule, torch.jit.ScriptModule)
"""Classes that none can be derived from."""


@dataclass(frozen=True)
class Subject:
    """A model and the request to convert it.

    Attributes:
        model: The model as it was given.
        root: Its module; of an exported program, the module of that.
        request: Policy, arguments and options.
        args: Positional call arguments; empty if none are given.
        kwargs: Keyword call arguments; empty if none are given.
        at_once: Whether it can be captured now: it has arguments, or needs none.
        trains: Whether parameters keep their dtype, to be trained.
        mode: Mode of the model; of a program, that of its capture.
        has_own_class: Whether a class can be derived from that of the model: not of a
            captured program, nor of a module that was converted or scripted before.
        owned: Whether the program may keep the tensors of the model: it is a copy.
        path: Path of the model in the converted model of which it is a part.
    """

    model: Model
    root: nn.Module
    request: Request
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    at_once: bool
    trains: bool
    mode: Literal["", "train", "eval"]
    has_own_class: bool
    owned: bool = False
    path: str = ""

    @classmethod
    def of(cls, model: Model, request: Request) -> Self:
        """Return ``model`` with its request and the facts that follow from both."""
        is_module = isinstance(model, nn.Module)
        root = model if is_module else model.module(check_guards=False)
        training = root.training
        return cls(
            model=model,
            root=root,
            request=request,
            args=request.args or (),
            kwargs=request.kwargs or {},
            at_once=request.has_arguments or not is_module,
            trains=training if request.training is None else request.training,
            mode="" if is_program(root) else "train" if training else "eval",
            has_own_class=is_module and not isinstance(root, _ALONE),
        )
