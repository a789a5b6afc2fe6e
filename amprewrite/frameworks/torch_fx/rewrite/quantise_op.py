"""The operator ``amprewrite::quantise``: rounding to 8 bits, forward and backward.

It stands on both sides of a contraction: its operands are rounded in the forward pass,
with the gradient of the identity (straight through), and its result is the identity
with a rounded gradient. It is an operator of its own, so that captured programs keep it
with its derivative.
"""

from typing import Any

import torch

from amprewrite.dtypes.rounding import quantise_scaled
from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.torch_fx.compat import operators

LIBRARY: Any = operators.Library("amprewrite", "FRAGMENT")
LIBRARY.define(
    "quantise(Tensor x, str forward, str backward, str scaling) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def _compute(
    x: torch.Tensor, forward: str, _backward: str, scaling: Any
) -> torch.Tensor:
    """Return ``x`` in the format ``forward``; a copy of it if that is empty."""
    return quantise_scaled(x, forward, scaling) if forward else x.clone()


class _Quantise(torch.autograd.Function):
    """Round by one format forward, and the gradient by another one."""

    @staticmethod
    def forward(
        x: torch.Tensor, forward: str, backward: str, scaling: str
    ) -> torch.Tensor:
        return _compute(x, forward, backward, scaling)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG004  # autograd passes all three
        ctx.backward_format, ctx.scaling = inputs[2:]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]  # torch's stub takes any arguments
        if ctx.backward_format:
            gradient = OPERATOR(gradient, ctx.backward_format, "", ctx.scaling)
        return gradient, None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor, *_: Any) -> torch.Tensor:  # noqa: ARG004  # pyright: ignore[reportIncompatibleMethodOverride]  # torch's stub takes any arguments
        return tangent.clone()


_FUNCTION: Any = _Quantise


def _differentiable(
    x: torch.Tensor, forward: str, backward: str, scaling: str
) -> torch.Tensor:
    """Compute the operator where autograd or a transform may want its derivative.

    Raises:
        UnsupportedError: Inside of ``torch.func.grad``, with a rounded gradient.
    """
    if not operators.in_transform():
        return _FUNCTION.apply(x, forward, backward, scaling)
    if backward:
        msg = (
            f"torch.func differentiates a contraction with gradients in {backward}, "
            f"which a transform cannot round; want loss.backward() or "
            f"torch.autograd.grad, or a policy with [contract] backward = ''"
        )
        raise UnsupportedError(msg)
    # No Function can be entered from here. The second term is zero, and has the
    # derivative; infinities and NaN are left out of it, as their difference is no zero.
    rounded = _compute(x, forward, backward, scaling).detach()
    finite = torch.where(torch.isfinite(x), x, 0.0)
    return rounded + (finite - finite.detach())


def _batched(
    _info: Any, in_dims: tuple[Any, ...], x: torch.Tensor, *how: str
) -> tuple[torch.Tensor, Any]:
    """Compute the operator under ``torch.func.vmap``: one scale for the batch."""
    return OPERATOR(x, *how), in_dims[0]


def _shaped(
    x: torch.Tensor, _forward: str, _backward: str, _scaling: str
) -> torch.Tensor:
    """Return a tensor without data, of the result's type."""
    return torch.empty_like(x)


LIBRARY.impl("quantise", _differentiable, "Autograd")
LIBRARY.impl("quantise", _compute, "CompositeExplicitAutograd")
LIBRARY.impl("quantise", _shaped, "Meta")
operators.register_vmap("amprewrite::quantise", _batched, lib=LIBRARY)
OPERATOR: Any = torch.ops.amprewrite.quantise.default
