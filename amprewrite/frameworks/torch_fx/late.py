"""Capture a model by ``torch.export`` when it is called, once for each signature.

Promotion needs this way: dynamo runs the model's own ops before they can be rewritten,
and those refuse operands of different dtypes.
"""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from amprewrite.errors import AmpWarning
from amprewrite.frameworks.torch_fx import _compat
from amprewrite.plan import Plan

MANY = 16
"""Captured signatures at which the user is told; each took a capture and is kept."""

TOO_MANY = (
    f"{MANY} signatures were captured, one for each shape of the arguments, and each "
    f"is kept; convert with args= and dynamic_shapes= to capture once"
)

Capture = Callable[[tuple[Any, ...], Mapping[str, Any]], Any]
"""Returns the converted module for call arguments."""


def late_runner(
    model: nn.Module, capture: Capture, plans: list[Plan]
) -> Callable[..., Any]:
    """Return ``model`` as a function that is captured at its first call.

    Args:
        model: The model; its mode is part of a signature.
        capture: Converts it for one signature.
        plans: Gets the plan of each signature.
    """
    captured: dict[object, Any] = {}

    def run(*args: Any, **kwargs: Any) -> Any:
        key = (state_key(model), signature_key((args, kwargs)))
        if key not in captured:
            made = captured[key] = capture(args, kwargs)
            plans.append(made.plan)
            if len(captured) == MANY:
                warnings.warn(TOO_MANY, AmpWarning, stacklevel=2)
        return captured[key](*args, **kwargs)

    return run


def state_key(model: nn.Module) -> object:
    """Return what decides the program of a model: modes, and which tensors it has."""
    modes = tuple((id(part), part.training) for part in model.modules())
    tensors = (*model.parameters(), *model.buffers())
    return modes, tuple((id(tensor), tensor.dtype) for tensor in tensors)


def signature_key(arguments: Any) -> object:
    """Return what decides the program of a call: structure, types, and other values."""
    leaves, structure = _compat.pytree.tree_flatten(arguments)
    return repr(structure), tuple(map(_leaf_key, leaves))


def _leaf_key(leaf: object) -> object:
    if isinstance(leaf, torch.Tensor):
        return leaf.dtype, tuple(leaf.shape), leaf.device
    return type(leaf), repr(leaf)
