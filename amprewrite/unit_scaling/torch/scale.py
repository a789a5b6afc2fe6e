"""The operator ``amprewrite::scale``: one factor forward, another one backward.

It is an operator of its own, so that captured programs keep it: a Function of autograd
alone would leave its forward in an exported program, and lose its backward without a
word. Below the dispatch key of autograd it is a multiplication, so that compilers fuse
it. Factors are scalars of the schema: those of a tracer stay symbols.
"""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch

from amprewrite.errors import ArgumentError, UnsupportedError
from amprewrite.frameworks.torch_fx.compat.operators import (
    Library,
    in_transform,
    register_vmap,
)

Factor = Any
"""A float, or a number of a tracer."""

LIBRARY = Library("amprewrite", "FRAGMENT")
LIBRARY.define(
    "scale(Tensor x, Scalar forward, Scalar backward) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.pointwise),
)


_TRUE = ContextVar("true gradients of unit scaling", default=False)


@contextmanager
def true_gradients() -> Generator[None]:
    """Take each forward factor for the backward pass too, until the context ends."""
    before = _TRUE.set(True)
    try:
        yield
    finally:
        _TRUE.reset(before)


class _Scale(torch.autograd.Function):
    """Multiply by one factor forward, and gradients and tangents by another."""

    @staticmethod
    def forward(x: torch.Tensor, forward: Factor, _backward: Factor) -> torch.Tensor:
        return x * forward

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG004  # autograd passes all three
        ctx.factor = inputs[2]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]  # torch's stub takes any arguments
        return gradient * ctx.factor, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor, *_: Any) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]  # torch's stub takes any arguments
        return tangent * ctx.factor


_FUNCTION: Any = _Scale


def _differentiable(x: torch.Tensor, forward: Factor, backward: Factor) -> torch.Tensor:
    """Compute the operator where autograd or a transform may want its derivative."""
    backward = forward if _TRUE.get() else backward
    if not in_transform():
        return _FUNCTION.apply(x, forward, backward)
    # No Function can be entered from here. The second term is zero, and has the
    # derivative; infinities and NaN are left out of it, as their difference is no zero.
    finite = torch.where(torch.isfinite(x), x, 0.0)
    return x.detach() * forward + (finite - finite.detach()) * backward


def _plain(x: torch.Tensor, forward: Factor, _backward: Factor) -> torch.Tensor:
    """Compute the operator where nothing is differentiated."""
    return x * forward


def _batched(
    _info: Any, in_dims: tuple[Any, ...], x: torch.Tensor, *factors: Factor
) -> tuple[torch.Tensor, Any]:
    """Compute the operator under ``torch.func.vmap``: it is elementwise."""
    return OPERATOR(x, *factors), in_dims[0]


LIBRARY.impl("scale", _differentiable, "Autograd")
LIBRARY.impl("scale", _plain, "CompositeExplicitAutograd")
register_vmap("amprewrite::scale", _batched, lib=LIBRARY)
OPERATOR: Any = torch.ops.amprewrite.scale.default


def scale(x: torch.Tensor, forward: Factor, backward: Factor) -> torch.Tensor:
    """Multiply ``x`` by one factor forward, and its gradient by another one backward.

    Args:
        x: A float tensor of any dtype and shape.
        forward: Factor of the value.
        backward: Factor of the gradient, of tangents in forward mode too.

    Returns:
        A tensor of the dtype of ``x``; the product is computed in at least float32 and
        rounded once.

    Raises:
        ArgumentError: ``x`` holds integers or booleans.
        UnsupportedError: ``x`` is complex.
    """
    if x.is_complex():
        msg = (
            f"unit scaling of a complex tensor ({x.dtype}) has no rule; scale its real "
            "and imaginary parts: torch.view_as_real"
        )
        raise UnsupportedError(msg)
    if not x.is_floating_point():
        msg = f"cannot scale a tensor of {x.dtype}; want a float tensor: x.float()"
        raise ArgumentError(msg)
    return OPERATOR(x, forward, backward)


def scale_fwd(x: torch.Tensor, factor: Factor) -> torch.Tensor:
    """Multiply ``x`` in the forward pass only; see :func:`scale`."""
    return scale(x, factor, 1.0)


def scale_bwd(x: torch.Tensor, factor: Factor) -> torch.Tensor:
    """Multiply the gradient of ``x`` in the backward pass only; see :func:`scale`."""
    return scale(x, 1.0, factor)
