"""The two primitives, for a tensor of torch or an array of JAX."""

import sys
from importlib import import_module
from typing import Any

from amprewrite.errors import ArgumentError


def scale_fwd(x: Any, factor: float) -> Any:
    """Multiply ``x`` in the forward pass only; its gradient passes as it is.

    Args:
        x: A float tensor of torch, or a float array of JAX.
        factor: Any number; in torch also one of a tracer.

    Returns:
        ``factor * x`` in the dtype of ``x``, rounded once.

    Raises:
        ArgumentError: ``x`` is neither, or holds integers.
        UnsupportedError: ``x`` is complex.
    """
    return _primitives(x).scale_fwd(x, factor)


def scale_bwd(x: Any, factor: float) -> Any:
    """Return ``x``, and multiply its gradient in the backward pass.

    Args:
        x: A float tensor of torch, or a float array of JAX.
        factor: Any number; in torch also one of a tracer.

    Raises:
        ArgumentError: ``x`` is neither, or holds integers.
        UnsupportedError: ``x`` is complex.
    """
    return _primitives(x).scale_bwd(x, factor)


def _primitives(x: object) -> Any:
    """Return the module of the framework that ``x`` belongs to."""
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    if torch is not None and isinstance(x, torch.Tensor):
        return import_module("amprewrite.unit_scaling.torch")
    if jax is not None and (isinstance(x, jax.Array) or hasattr(x, "__array__")):
        return import_module("amprewrite.unit_scaling.jax")
    msg = (
        f"cannot scale a {type(x).__name__}; want a torch.Tensor, or with JAX imported "
        "a jax.Array or a NumPy array"
    )
    raise ArgumentError(msg)
