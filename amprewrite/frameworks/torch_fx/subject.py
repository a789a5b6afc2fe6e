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
        )

    @property
    def is_program(self) -> bool:
        """Whether the model is a captured program."""
        return is_program(self.root)

    @property
    def has_own_class(self) -> bool:
        """Whether a class can be derived from that of the model.

        It cannot from a captured program, or a module converted or scripted before.
        """
        alone = (KeepsDtypes, GraphModule, torch.jit.ScriptModule)
        return isinstance(self.model, nn.Module) and not isinstance(self.root, alone)
