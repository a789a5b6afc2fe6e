"""The operators of contractions in 8 bits, each with its derivative."""

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from amprewrite.dtypes.rounding import quantise_by, quantise_scaled, scale_of
from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.torch_fx.compat import operators
from amprewrite.frameworks.torch_fx.compat.operators import scaled_mm

# The operator ``amprewrite::quantise``: rounding to 8 bits, forward and backward.
#
# It stands on both sides of a contraction. On an operand it rounds in the forward pass,
# with the gradient of the identity (straight through); on the result it is the identity
# with a rounded gradient. It is an operator, so that captured programs keep it with its
# derivative.
#
# The derivative of what a contraction adds to its products is the gradient before it is
# rounded. So the contraction reads its addend without a derivative, and the operator on
# its result has the addend as an operand: it has no effect on the value.

LIBRARY: Any = operators.Library("amprewrite", "FRAGMENT")
LIBRARY.define(
    "quantise(Tensor x, str forward, str backward, str scaling, "
    "Tensor? addend=None, int after=0, Scalar factor=1) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def _quantised(
    x: torch.Tensor, forward: str, _backward: str, scaling: Any, *_: Any
) -> torch.Tensor:
    """Return ``x`` in the format ``forward``; a copy of it if that is empty."""
    return quantise_scaled(x, forward, scaling) if forward else x.clone()


class _Quantise(torch.autograd.Function):
    """Round by one format forward, and the gradient by another one."""

    @staticmethod
    def forward(x: torch.Tensor, *how: Any) -> torch.Tensor:
        return _quantised(x, *how)

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
            gradient = QUANTISE(gradient, ctx.backward_format, "", ctx.scaling)
        return gradient, None, None, None, of_addend, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor, *others: Any) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]  # torch's stub takes any arguments
        addend, (after, factor) = others[3], ctx.place
        if addend is None:
            return tangent.clone()
        addend = addend.reshape(*addend.shape, *[1] * after) * factor
        return tangent + addend.to(tangent.dtype)


_QUANTISE: Any = _Quantise


def _differentiable_quantise(  # noqa: PLR0913, PLR0917  # the signature of the operator
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
        return _QUANTISE.apply(x, *how)
    if backward:
        msg = (
            f"torch.func differentiates a contraction with gradients in {backward}, "
            f"which a transform cannot round; want loss.backward() or "
            f"torch.autograd.grad, or a policy with [contract] backward = ''"
        )
        raise UnsupportedError(msg)
    # No Function can be entered from here. The second term is zero, and has the
    # derivative; infinities and NaN are left out of it, as their difference is no zero.
    rounded = _quantised(x, forward, backward, scaling).detach()
    finite = torch.where(torch.isfinite(x), x, 0.0)
    return rounded + (finite - finite.detach())


def _batched(
    _info: Any, in_dims: tuple[Any, ...], x: torch.Tensor, *how: Any
) -> tuple[torch.Tensor, Any]:
    """Compute the operator under ``torch.func.vmap``: one scale for the batch."""
    formats, rest = how[:3], how[3:]
    if not rest or rest[0] is None:
        return QUANTISE(x, *formats), in_dims[0]
    filled: list[Any] = [*rest, *(0, 1)[len(rest) - 1 :]]  # with the defaults
    addend, after, factor = filled
    x = x.movedim(in_dims[0], 0)
    if in_dims[4] is not None:  # the batch is a dimension before those of the sample
        addend = addend.movedim(in_dims[4], 0)
        missing = x.dim() - addend.dim() - after
        addend = addend.reshape(len(addend), *[1] * missing, *addend.shape[1:])
    return QUANTISE(x, *formats, addend, after, factor), 0


def _shape_of_quantised(x: torch.Tensor, *_: Any) -> torch.Tensor:
    """Return a tensor without data, of the result's type."""
    return torch.empty_like(x)


LIBRARY.impl("quantise", _differentiable_quantise, "Autograd")
LIBRARY.impl("quantise", _quantised, "CompositeExplicitAutograd")
LIBRARY.impl("quantise", _shape_of_quantised, "Meta")
operators.register_vmap("amprewrite::quantise", _batched, lib=LIBRARY)
QUANTISE: Any = torch.ops.amprewrite.quantise.default


# Products of 8-bit matrices by ``torch._scaled_mm``: its layout, its multiples of 16.
#
# Source of the limits: the checks of ``_scaled_mm_out_cuda`` (ATen, torch 2.13): the
# first matrix row-major, the second column-major, the summed extent and the columns
# multiples of 16, at most one of the two in e5m2, compute capability 8.9.

MULTIPLE = 16
"""Bytes to which rows of matrices of 8 bits are aligned."""

CAPABILITY = (8, 9)
"""Least compute capability of CUDA devices with products of 8 bits."""


class Rounded:
    """A matrix in an 8-bit format, with the scale that it was multiplied by.

    Attributes:
        held: The numbers, row-major, of an 8-bit dtype.
        inverse: Factor by which they give the matrix, a float32 scalar.
    """

    def __init__(self, x: torch.Tensor, name: str, scaling: str) -> None:
        """Round a matrix.

        Args:
            x: A float matrix.
            name: The format, such as ``float8_e4m3fn``.
            scaling: ``none`` or ``current``.
        """
        wide = x.float()
        scales = scaling == "current" and 0 not in x.shape
        scale = scale_of(wide, name) if scales else wide.new_ones(())
        values = quantise_by(wide, name, (scale,)) * scale
        self.held = values.to(getattr(torch, name)).contiguous()
        self.inverse = scale.reciprocal()

    def transposed(self) -> "Rounded":
        """Return the transposed matrix, row-major too."""
        made = object.__new__(Rounded)
        made.held, made.inverse = self.held.t().contiguous(), self.inverse
        return made


def product(left: Rounded, right: Rounded) -> torch.Tensor:
    """Return the product of one matrix with the transposed other one, in float32.

    Extents are padded with zeros to those of the kernel, which changes no sum.

    Args:
        left: A matrix of m rows and k columns.
        right: A matrix of n rows and k columns.

    Returns:
        A float32 matrix of m rows and n columns.
    """
    rows, columns = left.held.shape[0], right.held.shape[0]
    if 0 in (*left.held.shape, columns):
        return left.inverse.new_zeros((rows, columns))
    one, two = _padded(left.held, rows=False), _padded(right.held, rows=True)
    made = scaled_mm(one, two.t(), left.inverse, right.inverse)
    return made[:, :columns]


def _padded(held: torch.Tensor, *, rows: bool) -> torch.Tensor:
    """Return ``held`` with zeros up to whole multiples of columns, and of rows."""
    below = -held.shape[0] % MULTIPLE if rows else 0
    beside = -held.shape[1] % MULTIPLE
    if not below and not beside:
        return held
    bits = torch.nn.functional.pad(held.view(torch.uint8), (0, beside, 0, below))
    return bits.view(held.dtype)


def has_products(device: torch.device) -> bool:
    """Return whether a device multiplies matrices of 8 bits."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= CAPABILITY
    return device.type in ("cpu", "meta")


def check_device(device: torch.device) -> None:
    """Refuse a device without products of 8 bits.

    Raises:
        UnsupportedError: It has none.
    """
    if not has_products(device):
        msg = (
            f"kernel = 'scaled_mm' asks for products of 8 bits, and {device} has none; "
            "want a CUDA device of capability 8.9 or more, or kernel = 'auto' or "
            "'emulated' in [contract] of the policy"
        )
        raise UnsupportedError(msg)


# The operator ``amprewrite::fp8_dot``: a linear layer by products of 8 bits.
#
# Operands are rounded to one format, the gradient of the result to another one, and all
# three products (forward, gradient of the input, gradient of the weight) are done by
# :func:`product`. It multiplies the same numbers as the emulation by
# ``amprewrite::quantise``; sums may be in another order. The gradient of the bias is
# the sum of the gradient before it is rounded.

LIBRARY.define(
    "fp8_dot(Tensor x, Tensor weight, Tensor? bias, str forward, str backward, "
    "str scaling, bool turned) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def _multiplied(
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
        return _multiplied(*args)

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


_FP8_DOT: Any = _Fp8Dot


def _differentiable_dot(*args: Any) -> torch.Tensor:
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
    return _FP8_DOT.apply(*args)


def _shape_of_dot(x: torch.Tensor, weight: torch.Tensor, *rest: Any) -> torch.Tensor:
    """Return a tensor without data, of the result's type."""
    turned = rest[-1]
    return x.new_empty((*x.shape[:-1], weight.shape[1 if turned else 0]))


LIBRARY.impl("fp8_dot", _differentiable_dot, "Autograd")
LIBRARY.impl("fp8_dot", _multiplied, "CompositeExplicitAutograd")
LIBRARY.impl("fp8_dot", _shape_of_dot, "Meta")
FP8_DOT: Any = torch.ops.amprewrite.fp8_dot.default
