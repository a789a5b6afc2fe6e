"""The check that scaled gradients point where the true ones do."""

import math
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from amprewrite.errors import ArgumentError

Gradients = Mapping[str, NDArray[Any]]
"""By name of the parameter."""

NOISE = 0.99
"""Below this cosine, two computations of one gradient share nothing but rounding."""


class Pulled(NamedTuple):
    """Gradients of one model, computed in three ways.

    Attributes:
        scaled: As the model gives them.
        true: Those of its forward function, without factors of their own.
        again: The true ones for an output gradient that is :data:`STRETCH` times as
            large: the same direction, rounded otherwise.
    """

    scaled: Gradients
    true: Gradients
    again: Gradients


STRETCH = 1.37
"""No power of two: every product rounds otherwise."""


def check_gradient_validity(
    scaled: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
) -> dict[str, float]:
    """Compare gradients of a scaled model with the true ones of its forward function.

    The true gradient takes each factor of the forward pass for the backward pass too.
    Where factors differ on an edge that is no cut edge, the gradients of two paths are
    added with wrong weights, and the direction of a parameter's gradient is wrong.
    Every float output gets a gradient of unit Gaussian numbers. Where some are scalars
    they are losses: they get 1, and other outputs 0.

    Args:
        scaled: A ``torch.nn.Module``, or a function of JAX whose first argument holds
            the parameters, or a JAX module that is a pytree of its own.
        args: Positional arguments of the call.
        kwargs: Keyword arguments of the call.

    Returns:
        For each parameter the cosine between the two gradients, 1 if it is valid. NaN
        where the true gradient is zero, or so small that it is rounding alone.

    Raises:
        ArgumentError: ``scaled`` is no such model, or has no float output or parameter.
    """
    module = load_for(scaled, "gradients")
    pulled: Pulled = module.pull(scaled, tuple(args), dict(kwargs or {}))
    if not pulled.scaled:
        msg = f"{type(scaled).__name__} has no float parameter that is differentiated"
        raise ArgumentError(msg)
    return {
        name: (
            cosine(pulled.scaled[name], true)
            if cosine(true, pulled.again[name]) > NOISE
            else math.nan
        )
        for name, true in pulled.true.items()
    }


def load_for(model: Any, part: str) -> Any:
    """Return the module of that name for the framework of ``model``.

    Raises:
        ArgumentError: ``model`` is neither a module of torch nor a function of JAX.
    """
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    if torch is not None and isinstance(model, torch.nn.Module):
        return import_module(f"amprewrite.unit_scaling.torch.{part}")
    if jax is not None and callable(model):
        return import_module(f"amprewrite.unit_scaling.jax.{part}")
    msg = (
        f"cannot differentiate a {type(model).__name__}; want a torch.nn.Module, or "
        "with JAX imported a function of parameters"
    )
    raise ArgumentError(msg)


def cosine(left: NDArray[Any], right: NDArray[Any]) -> float:
    """Return the cosine between two arrays, NaN if one is zero or not finite."""
    a, b = (np.ravel(x).astype(np.float64) for x in (left, right))
    # The largest element is 1, so that no square is lost or too large.
    sizes = [np.abs(x).max(initial=0.0) for x in (a, b)]
    if not all(0 < size < math.inf for size in sizes):
        return math.nan
    a, b = a / sizes[0], b / sizes[1]
    return float(a @ b / math.sqrt(float(a @ a) * float(b @ b)))
