"""Capture a model by ``torch.export`` at its calls, once for each signature.

Promotion needs it: dynamo runs the model's own ops before they can be rewritten, and
those refuse operands of different dtypes.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from amprewrite.errors import warn
from amprewrite.frameworks.torch_fx.capture.tensor_changes import Mark
from amprewrite.frameworks.torch_fx.compat import pytrees, threads
from amprewrite.plan import Plan

MANY = 16
"""Largest number of captured signatures that are kept; the oldest are dropped."""

TOO_MANY = (
    f"{MANY} signatures were captured, one for each shape of the arguments, and no "
    f"more are kept: the next takes the place of the one that was called longest ago; "
    f"convert with args= and dynamic_shapes= to capture once"
)

Capture = Callable[[tuple[Any, ...], Mapping[str, Any]], Any]
"""Function from call arguments to the converted module."""


def late_runner(
    model: nn.Module, capture: Capture, plans: list[Plan], *, follows: bool = True
) -> Callable[..., Any]:
    """Return ``model`` as a function that is captured at its first call.

    Args:
        model: The model; its mode is part of a signature.
        capture: Converts it for one signature.
        plans: List that receives the plan of each signature, and keeps all.
        follows: Whether a conversion reads the model's own tensors; if not, all are
            captured again after one was written to.
    """
    captured: OrderedDict[object, Any] = OrderedDict()
    marks: list[Mark] = []
    told = False

    def found(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        nonlocal told
        if not follows and _changed(model, marks):
            captured.clear()
        key = (state_key(model), signature_key((args, kwargs)))
        if key not in captured:
            made = captured[key] = capture(args, kwargs)
            plans.append(made.plan)
            if len(captured) >= MANY and not told:
                told = True
                warn(TOO_MANY)
            if len(captured) > MANY:
                captured.popitem(last=False)
        captured.move_to_end(key)
        return captured[key]

    def run(*args: Any, **kwargs: Any) -> Any:
        with threads.capturing():
            program = found(args, kwargs)
        return program(*args, **kwargs)

    return run


def _changed(model: nn.Module, marks: list[Mark]) -> bool:
    """Return whether a tensor changed since the last call; record the state of all."""
    tensors = (*model.parameters(), *model.buffers())
    if len(tensors) == len(marks) and all(map(Mark.holds, marks, tensors)):
        return False
    marks[:] = map(Mark, tensors)
    return True


def state_key(model: nn.Module) -> object:
    """Return a key of the state that a program depends on: modes, tensors, dtypes."""
    modes = tuple((id(part), part.training) for part in model.modules())
    tensors = (*model.parameters(), *model.buffers())
    return modes, tuple((id(tensor), tensor.dtype) for tensor in tensors)


def signature_key(arguments: Any) -> object:
    """Return a key of the arguments that a program depends on: types and values."""
    leaves, structure = pytrees.pytree.tree_flatten(arguments)
    return repr(structure), tuple(map(_leaf_key, leaves))


def _leaf_key(leaf: object) -> object:
    if isinstance(leaf, torch.Tensor):
        return leaf.dtype, tuple(leaf.shape), leaf.device
    return type(leaf), repr(leaf)
