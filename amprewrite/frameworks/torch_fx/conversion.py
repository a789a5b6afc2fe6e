"""One conversion of a torch model, from the call that asks for it to its program."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import nn
from torch.fx import GraphModule

from amprewrite.frameworks.base import Request
from amprewrite.frameworks.torch_fx.capture.program import Model, is_program
from amprewrite.frameworks.torch_fx.module.moves import KeepsDtypes
from amprewrite.plan import Plan

_ALONE = (KeepsDtypes, GraphModule, torch.jit.ScriptModule)
"""Classes that none can be derived from."""


@dataclass(frozen=True)
class Conversion:
    """A model, the request to convert it, and what is known of the call.

    Attributes:
        model: The model: as the user gave it, or the plain form of a converted model
            or of a part of one, with the current tensors.
        request: Policy, arguments and options.
        owned: Whether the program may keep the tensors of the model: it is a copy.
        path: Path of the model in the converted model of which it is a part.
        like: Plan of a program for other extents of the same arguments.
        first: Whether it is the first program of a converted model.
        reason: Text of the reason why no program of one graph will do; or empty.
        exported: Whether ``torch.export`` traces the call, which dynamo cannot capture.
            The program is a part of the graph that is made, and the model keeps neither
            it nor its low weights.
        stand_ins: Whether tensors among the arguments have values that no call gave.
        lent: Whether the model has tensors for this call alone, of a transform or of
            ``functional_call``: it stores no weights low.
        varies: Whether dynamo is to capture what export would capture again for each
            value of a number, or for each extent.
    """

    model: Model
    request: Request
    owned: bool = False
    path: str = ""
    like: Plan | None = None
    first: bool = False
    reason: str = ""
    exported: bool = False
    stand_ins: bool = False
    lent: bool = False
    varies: bool = False

    @cached_property
    def root(self) -> nn.Module:
        """The module of the model; of an exported program, the module of that."""
        model: Any = self.model
        is_module = isinstance(model, nn.Module)
        return model if is_module else model.module(check_guards=False)

    @property
    def args(self) -> tuple[Any, ...]:
        """Positional call arguments; empty if none are given."""
        return self.request.args or ()

    @property
    def kwargs(self) -> Mapping[str, Any]:
        """Keyword call arguments; empty if none are given."""
        return self.request.kwargs or {}

    @property
    def at_once(self) -> bool:
        """Whether it can be captured now: it has arguments, or needs none."""
        return self.request.has_arguments or not isinstance(self.model, nn.Module)

    @property
    def trains(self) -> bool:
        """Whether parameters keep their dtype, to be trained."""
        asked = self.request.training
        return self.root.training if asked is None else asked

    @property
    def mode(self) -> Literal["", "train", "eval"]:
        """Mode of the model; of a program, that of its capture."""
        if is_program(self.root):
            return ""
        return "train" if self.root.training else "eval"

    @property
    def has_own_class(self) -> bool:
        """Whether a class can be derived from that of the model.

        None can from that of a captured program, nor from that of a module that was
        converted or scripted before.
        """
        return isinstance(self.model, nn.Module) and not isinstance(self.model, _ALONE)

    def asking(self, **options: Any) -> "Conversion":
        """Return the conversion with other options of its request."""
        return replace(self, request=replace(self.request, **options))
