"""Refusals of copies and compilers that would lose a converted model's programs."""

import copy
from types import FrameType
from typing import Any

from torch import nn

from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.torch_fx.module.moves import KeepsDtypes
from amprewrite.frameworks.torch_fx.plain.plain_class import plain_class

SYMBOLIC = (
    "torch.fx.symbolic_trace cannot trace a converted module, whose programs are "
    "chosen by the arguments of a call; converted.rewritten is the program that ran "
    "last, a torch.fx.GraphModule"
)
"""Message about a call with the symbols of a tracer in Python."""


class KeepsPrograms(KeepsDtypes):
    """A converted model, or a part of one, for compilers of Python code."""

    def __prepare_scriptable__(self) -> Any:
        """Refuse ``torch.jit.script``, of the module and of one that holds it.

        Raises:
            UnsupportedError: Always.
        """
        msg = (
            f"TorchScript cannot compile {plain_class(type(self)).__name__}, which is "
            f"converted, or a part of a converted model: its programs are chosen in "
            f"Python; use torch.jit.trace(converted, args), torch.export.export or "
            f"torch.compile"
        )
        raise UnsupportedError(msg)


def no_shallow_copy(model: nn.Module) -> str:
    """Return the message that a converted model cannot be copied by ``copy.copy``."""
    return (
        f"a converted {plain_class(type(model)).__name__} cannot be copied by "
        f"copy.copy: two models would share its parts, whose programs follow the "
        f"changes of one; use copy.deepcopy(model), or convert "
        f"amprewrite.original(model) again"
    )


def refuse_copy_of_other(model: nn.Module, caller: FrameType | None) -> None:
    """Refuse the copy of an object that takes ``__deepcopy__`` from a model inside.

    Args:
        model: The converted model that is asked for a copy.
        caller: The frame that asks.

    Raises:
        UnsupportedError: It asks for the copy of another object, which hands on all
            attributes that it does not have.
    """
    asked: Any = model
    if caller is not None and caller.f_code is copy.deepcopy.__code__:
        asked = caller.f_locals.get("x", model)
    if asked is not model:
        msg = (
            f"{type(asked).__name__} takes __deepcopy__ from the converted model "
            f"inside of it, so that copy.deepcopy would give a copy of that alone; "
            f"copy before it is wrapped, or wrap amprewrite.original(model)"
        )
        raise UnsupportedError(msg)
