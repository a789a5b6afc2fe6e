"""Scaled contractions: linear layers, products, convolutions, attention, embedding.

Factors of inputs are joined with that of the output by ``constraint``; weights and
biases keep their own, as their gradients end there.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from amprewrite.unit_scaling.rules import Factors, constrained, extents, shapes
from amprewrite.unit_scaling.torch._compat import broadcast_shapes
from amprewrite.unit_scaling.torch.numbers import numbers
from amprewrite.unit_scaling.torch.scale import scale_bwd, scale_fwd

Constraint = str | None
OUTPUT = "to_output_scale"
Spread = int | Sequence[int]
"""One number for all spatial dimensions, or one for each."""


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None, factors: Factors) -> Tensor:
    """Compute a linear layer with the factors given."""
    backward = factors.backward
    x, weight = scale_bwd(x, backward["input"]), scale_bwd(weight, backward["weight"])
    if bias is not None:
        bias = scale_bwd(bias, backward["bias"])
    return scale_fwd(functional.linear(x, weight, bias), factors.forward)


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    constraint: Constraint = OUTPUT,
) -> Tensor:
    """Compute a scaled linear layer.

    Args:
        x: (..., in), unit scale.
        weight: (out, in), unit scale: drawn with standard deviation 1.
        bias: (out,), zero at first.
        constraint: Constraint of the factors of output and ``x``.
    """
    factors = constrained(shapes.of_linear(x.shape, weight.shape), constraint)
    return _linear(x, weight, bias, factors)


def linear_readout(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, constraint: Constraint = None
) -> Tensor:
    """Compute the last layer of a model: :func:`linear` with 1/in forward.

    Its output has scale ``in ** -0.5`` at first, and grows to 1 as weights learn.
    """
    found = shapes.of_linear(x.shape, weight.shape, readout=True)
    return _linear(x, weight, bias, constrained(found, constraint))


def matmul(left: Tensor, right: Tensor, constraint: Constraint = OUTPUT) -> Tensor:
    """Compute a scaled product of two matrices, or of batches of them.

    Raises:
        ArgumentError: An operand is a vector.
    """
    batch = broadcast_shapes(left.shape[:-2], right.shape[:-2])
    found = shapes.of_matmul(left.shape, right.shape, batch)
    factors = constrained(found, constraint)
    left = scale_bwd(left, factors.backward["left"])
    right = scale_bwd(right, factors.backward["right"])
    return scale_fwd(torch.matmul(left, right), factors.forward)


def _conv(
    function: Callable[..., Tensor],
    operands: tuple[Tensor, Tensor, Tensor | None],
    how: tuple[Any, ...],
    constraint: Constraint,
) -> Tensor:
    """Compute a scaled convolution; ``how`` ends with the number of groups."""
    x, weight, bias = operands
    stride, padding, dilation = (_each(value, weight.dim() - 2) for value in how[:3])
    result = shapes.after_conv(x.shape, weight.shape, stride, padding, dilation)
    found = shapes.of_conv(x.shape, weight.shape, result, how[3])
    factors = constrained(found, constraint)
    x = scale_bwd(x, factors.backward["input"])
    weight = scale_bwd(weight, factors.backward["weight"])
    if bias is not None:
        bias = scale_bwd(bias, factors.backward["bias"])
    return scale_fwd(function(x, weight, bias, *how), factors.forward)


def _each(value: Spread, places: int) -> Sequence[int]:
    """Return a number for each spatial dimension."""
    return [value] * places if isinstance(value, int) else value


def conv1d(  # noqa: PLR0913, PLR0917  # signature of torch.nn.functional
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Spread = 1,
    padding: Spread = 0,
    dilation: Spread = 1,
    groups: int = 1,
    constraint: Constraint = OUTPUT,
) -> Tensor:
    """Compute a scaled convolution over one dimension.

    Args:
        x: (batch, channels, length) or (channels, length).
        weight: (out, channels / groups, kernel), unit scale.
        bias: (out,), zero at first.
        stride: Step of the kernel.
        padding: Zeros on both sides.
        dilation: Step between taps.
        groups: Number of groups.
        constraint: Constraint of the factors of output and ``x``.
    """
    how = (stride, padding, dilation, groups)
    return _conv(functional.conv1d, (x, weight, bias), how, constraint)


def conv2d(  # noqa: PLR0913, PLR0917  # signature of torch.nn.functional
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Spread = 1,
    padding: Spread = 0,
    dilation: Spread = 1,
    groups: int = 1,
    constraint: Constraint = OUTPUT,
) -> Tensor:
    """Compute a scaled convolution over two dimensions; see :func:`conv1d`."""
    how = (stride, padding, dilation, groups)
    return _conv(functional.conv2d, (x, weight, bias), how, constraint)


def embedding(tokens: Tensor, weight: Tensor, padding_idx: int | None = None) -> Tensor:
    """Look up rows of a table of unit scale; its gradient has unit scale.

    Args:
        tokens: Integers of any shape.
        weight: (vocabulary, width).
        padding_idx: Row without a gradient.
    """
    factors = extents.embedding(vocabulary=weight.shape[0], tokens=tokens.numel())
    return functional.embedding(
        tokens, scale_bwd(weight, factors.backward["weight"]), padding_idx
    )


def scaled_dot_product_attention(  # noqa: PLR0913  # signature of torch.nn.functional
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    *,
    is_causal: bool = False,
    mult: float = 1.0,
    constraint: Constraint = OUTPUT,
) -> Tensor:
    """Compute scaled attention, with logits times ``mult / head``.

    Args:
        query: (..., queries, head), unit scale.
        key: (..., keys, head).
        value: (..., keys, width).
        attn_mask: Mask as for torch's function. The rule does not know it: it counts
            all keys.
        dropout_p: Probability of dropout.
        is_causal: Whether row i sees the first i + 1 keys.
        mult: Inverse temperature.
        constraint: Constraint of all four factors. The extents of queries and keys
            become constants of a captured program.
    """
    forward, *backward = numbers(
        "scaled_dot_product_attention",
        mult,
        constraint,
        queries=query.shape[-2],
        keys=key.shape[-2],
        head=query.shape[-1],
        value_head=value.shape[-1],
        causal=is_causal,
        p=dropout_p,
    )
    inputs = zip((query, key, value), backward, strict=True)
    query, key, value = (scale_bwd(x, factor) for x, factor in inputs)
    y = functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask,
        dropout_p,
        is_causal=is_causal,
        scale=mult / query.shape[-1],
    )
    return scale_fwd(y, forward)
