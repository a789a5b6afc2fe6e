"""The operator ``amprewrite::fp8_dot``: a linear layer by products of 8 bits.

Operands are rounded to one format, the gradient of the result to another one, and all
three products (forward, gradient of the input, gradient of the weight) are those of
:mod:`product`. The numbers that are multiplied are those of the emulation
(``quantise_op``); sums may be in another order. The gradient of the bias is the sum of
the gradient before it is rounded.
"""

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.torch_fx.compat import operators
from amprewrite.frameworks.torch_fx.rewrite.fp8_kernel.product import (
    Rounded,
    check_device,
    product,
)

LIBRARY: Any = operators.Library("amprewrite", "FRAGMENT")
LIBRARY.define(
    "fp8_dot(Tensor x, Tensor weight, Tensor? bias, str forward, str backward, "
    "str scaling, bool turned) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def _compute(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    forward: str,
    _backward: str,
    scaling: str,
    turned: bool,  # noqa: FBT001  # the signature of the operator
) -> torch.Tensor:
    """Return ``x @ weight.T + bias``, of the dtype of ``x``, rounded once.

    With ``turned`` the weight has the inputs as rows: ``x @ weight + bias``.
    """
    check_device(x.device)
    rows = Rounded(x.reshape(-1, x.shape[-1]), forward, scaling)
    columns = Rounded(weight, forward, scaling)
    made = product(rows, columns.transposed() if turned else columns)
    if bias is not None:
        made = made + bias.float()
    return made.to(x.dtype).reshape(*x.shape[:-1], made.shape[1])


class _Fp8Dot(torch.autograd.Function):
    """Multiply in 8 bits, and so in both products of the derivative."""

    @staticmethod
    def forward(*args: Any) -> torch.Tensor:
        return _compute(*args)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG004  # autograd passes all three
        x, weight, bias, *ctx.how = inputs
        ctx.save_for_backward(x, weight)
        ctx.bias = None if bias is None else (bias.shape, bias.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]  # torch's stub takes any arguments
        x, weight = ctx.saved_tensors
        forward, backward, scaling, turned = ctx.how
        flat = gradient.reshape(-1, gradient.shape[-1])
        rounded = Rounded(flat, backward, scaling)
        of_x = of_weight = of_bias = None
        if ctx.needs_input_grad[0]:
            columns = Rounded(weight, forward, scaling)
            columns = columns if turned else columns.transposed()
            of_x = product(rounded, columns).to(x.dtype).reshape(x.shape)
        if ctx.needs_input_grad[1]:
            rows = Rounded(x.reshape(-1, x.shape[-1]), forward, scaling)
            pair = rounded.transposed(), rows.transposed()
            of_weight = product(*(reversed(pair) if turned else pair))
            of_weight = of_weight.to(weight.dtype)
        if ctx.needs_input_grad[2]:
            shape, dtype = ctx.bias
            of_bias = flat.float().sum_to_size(*shape).to(dtype)
        return of_x, of_weight, of_bias, None, None, None, None


_FUNCTION: Any = _Fp8Dot


def _differentiable(*args: Any) -> torch.Tensor:
    """Compute the operator where autograd may want its derivative.

    Raises:
        UnsupportedError: Inside of a transformation of ``torch.func``.
    """
    if operators.in_transform():
        msg = (
            "torch.func transforms a product of kernel = 'scaled_mm', which has no "
            "rule for it; want loss.backward(), or kernel = 'emulated' in [contract]"
        )
        raise UnsupportedError(msg)
    return _FUNCTION.apply(*args)


def _shaped(x: torch.Tensor, weight: torch.Tensor, *rest: Any) -> torch.Tensor:
    """Return a tensor without data, of the result's type."""
    turned = rest[-1]
    return x.new_empty((*x.shape[:-1], weight.shape[1 if turned else 0]))


LIBRARY.impl("fp8_dot", _differentiable, "Autograd")
LIBRARY.impl("fp8_dot", _compute, "CompositeExplicitAutograd")
LIBRARY.impl("fp8_dot", _shaped, "Meta")
OPERATOR: Any = torch.ops.amprewrite.fp8_dot.default
