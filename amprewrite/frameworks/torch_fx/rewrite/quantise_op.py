"""The operator ``amprewrite::quantise``: rounding to 8 bits, forward and backward.

It stands on both sides of a contraction: its operands are rounded in the forward pass,
with the gradient of the identity (straight through), and its result is the identity
with a rounded gradient. It is an operator of its own, so that captured programs keep it
with its derivative.

The derivative of what a contraction adds to its products is the gradient before it is
rounded. So the contraction reads its addend without a derivative, and the operator on
its result has the addend as an operand: it has no effect on the value.
"""

from typing import Any

import torch

from amprewrite.dtypes.rounding import quantise_scaled
from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.torch_fx.compat import operators

LIBRARY: Any = operators.Library("amprewrite", "FRAGMENT")
LIBRARY.define(
    "quantise(Tensor x, str forward, str backward, str scaling, "
    "Tensor? addend=None, int after=0, Scalar factor=1) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def _compute(
    x: torch.Tensor, forward: str, _backward: str, scaling: Any, *_: Any
) -> torch.Tensor:
    """Return ``x`` in the format ``forward``; a copy of it if that is empty."""
    return quantise_scaled(x, forward, scaling) if forward else x.clone()


class _Quantise(torch.autograd.Function):
    """Round by one format forward, and the gradient by another one."""

    @staticmethod
    def forward(x: torch.Tensor, *how: Any) -> torch.Tensor:
        return _compute(x, *how)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG004  # autograd passes all three
        ctx.backward_format, ctx.scaling, addend, *ctx.place = inputs[2:]
        ctx.addend = None if addend is None else (addend.shape, addend.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]  # torch's stub takes any arguments
        of_addend = None
        if ctx.needs_input_grad[4]:
            (shape, dtype), (after, factor) = ctx.addend, ctx.place
            scaled = gradient if factor == 1 else gradient * factor
            summed = scaled.sum_to_size([*shape, *[1] * after])
            of_addend = summed.reshape(shape).to(dtype)
        if ctx.backward_format:
            gradient = OPERATOR(gradient, ctx.backward_format, "", ctx.scaling)
        return gradient, None, None, None, of_addend, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor, *others: Any) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]  # torch's stub takes any arguments
        addend, (after, factor) = others[3], ctx.place
        if addend is None:
            return tangent.clone()
        addend = addend.reshape(*addend.shape, *[1] * after) * factor
        return tangent + addend.to(tangent.dtype)


_FUNCTION: Any = _Quantise


def _differentiable(  # noqa: PLR0913, PLR0917  # the signature of the operator
    x: torch.Tensor,
    forward: str,
    backward: str,
    scaling: str,
    addend: torch.Tensor | None = None,
    after: int = 0,
    factor: float = 1,
) -> torch.Tensor:
    """Compute the operator where autograd or a transform may want its derivative.

    Raises:
        UnsupportedError: Inside of ``torch.func.grad``, with a rounded gradient.
    """
    if not operators.in_transform():
        how = forward, backward, scaling, addend, after, factor
        return _FUNCTION.apply(x, *how)
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
    _info: Any, in_dims: tuple[Any, ...], x: torch.Tensor, *how: Any
) -> tuple[torch.Tensor, Any]:
    """Compute the operator under ``torch.func.vmap``: one scale for the batch."""
    formats, rest = how[:3], how[3:]
    if not rest or rest[0] is None:
        return OPERATOR(x, *formats), in_dims[0]
    filled: list[Any] = [*rest, *(0, 1)[len(rest) - 1 :]]  # with the defaults
    addend, after, factor = filled
    x = x.movedim(in_dims[0], 0)
    if in_dims[4] is not None:  # the batch is a dimension before those of the sample
        addend = addend.movedim(in_dims[4], 0)
        missing = x.dim() - addend.dim() - after
        addend = addend.reshape(len(addend), *[1] * missing, *addend.shape[1:])
    return OPERATOR(x, *formats, addend, after, factor), 0


def _shaped(x: torch.Tensor, *_: Any) -> torch.Tensor:
    """Return a tensor without data, of the result's type."""
    return torch.empty_like(x)


LIBRARY.impl("quantise", _differentiable, "Autograd")
LIBRARY.impl("quantise", _compute, "CompositeExplicitAutograd")
LIBRARY.impl("quantise", _shaped, "Meta")
operators.register_vmap("amprewrite::quantise", _batched, lib=LIBRARY)
OPERATOR: Any = torch.ops.amprewrite.quantise.default
