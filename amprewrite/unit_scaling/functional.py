"""Scaled ops of torch: unit scale in, unit scale out, and so for every gradient.

Inputs and weights are drawn with standard deviation 1 and biases are 0; the rules of
:mod:`amprewrite.unit_scaling` keep that scale. Extents may vary in captured programs,
except those that a softmax sums over. Complex tensors are refused.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from amprewrite.errors import ArgumentError
from amprewrite.unit_scaling import rules, shapes
from amprewrite.unit_scaling.rules import Factors, constrained
from amprewrite.unit_scaling.torch.scale import scale_bwd, scale_fwd

__all__ = [
    "add",
    "conv1d",
    "conv2d",
    "cross_entropy",
    "dropout",
    "elu",
    "embedding",
    "gelu",
    "gelu_glu",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "layer_norm",
    "leaky_relu",
    "linear",
    "linear_readout",
    "matmul",
    "mish",
    "mse_loss",
    "relu",
    "relu6",
    "relu_glu",
    "residual_add",
    "residual_apply",
    "residual_split",
    "rms_norm",
    "scaled_dot_product_attention",
    "sigmoid",
    "sigmoid_glu",
    "silu",
    "silu_glu",
    "softmax",
    "softplus",
    "tanh",
    "tanh_glu",
]


_torch: Any = torch
_broadcast_shapes: Any = _torch.broadcast_shapes


# Factors that no compiler traces: they are numbers, computed by NumPy and SciPy.

_compiler: Any = torch.compiler


def numbers(
    op: str, mult: float, constraint: str | None, **shape: Any
) -> tuple[float, ...]:
    """Return the factors of an op: the output's, then those of the inputs.

    Extents and multipliers must be numbers: a traced one is fixed by it, so that a
    compiled program is guarded by its value.
    """
    given = tuple((key, _fixed(value)) for key, value in shape.items())
    return _constant(op, float(mult).hex(), constraint or "", given)


def _fixed(value: float) -> object:
    """Return a constant of dynamo: the digits of a float, or an integer."""
    if isinstance(value, float):
        return value.hex()
    return bool(value) if isinstance(value, bool) else operator.index(value)


def _numbers(
    op: str, mult: str, constraint: str, shape: tuple[tuple[str, Any], ...]
) -> tuple[float, ...]:
    """Compute the factors from constants."""
    given = tuple(
        (key, float.fromhex(value) if isinstance(value, str) else value)
        for key, value in shape
    )
    return shapes.numbers(op, float.fromhex(mult), constraint, given)


_constant: Any = _compiler.assume_constant_result(_numbers)


# Scaled activations, gated linear units, softmax and dropout.
#
# Each activation computes ``f(mult * x) / mult``: ``mult`` sets how far a unit input
# reaches into what is not linear. By default one factor, that of the output, is applied
# both ways; ``constraint=None`` applies each its own.

Constraint = str | None
OUTPUT = "to_output_scale"


def _activation(
    op: str,
    function: Callable[[Tensor], Tensor],
    x: Tensor,
    mult: float,
    constraint: Constraint,
    **parameters: float,
) -> Tensor:
    """Compute a scaled activation by the rule of its name."""
    forward, backward = numbers(op, mult, constraint, **parameters)
    x = scale_bwd(x, backward)
    y = function(x) if mult == 1 else function(x * mult) / mult
    return scale_fwd(y, forward)


def gelu(
    x: Tensor,
    mult: float = 1.0,
    constraint: Constraint = OUTPUT,
    approximate: str = "none",
) -> Tensor:
    """Compute a scaled GELU; ``approximate="tanh"`` takes that form and its rule."""
    op = "gelu_tanh" if approximate == "tanh" else "gelu"
    return _activation(
        op, lambda z: functional.gelu(z, approximate=approximate), x, mult, constraint
    )


def silu(x: Tensor, mult: float = 1.0, constraint: Constraint = OUTPUT) -> Tensor:
    """Compute a scaled SiLU."""
    return _activation("silu", functional.silu, x, mult, constraint)


def relu(x: Tensor, mult: float = 1.0, constraint: Constraint = OUTPUT) -> Tensor:
    """Compute a scaled ReLU, which no ``mult`` changes."""
    return _activation("relu", functional.relu, x, mult, constraint)


def relu6(x: Tensor, mult: float = 1.0, constraint: Constraint = OUTPUT) -> Tensor:
    """Compute a scaled ReLU6."""
    return _activation("relu6", functional.relu6, x, mult, constraint)


def leaky_relu(
    x: Tensor,
    mult: float = 1.0,
    constraint: Constraint = OUTPUT,
    negative_slope: float = 0.01,
) -> Tensor:
    """Compute a scaled leaky ReLU."""

    def function(z: Tensor) -> Tensor:
        return functional.leaky_relu(z, negative_slope)

    return _activation(
        "leaky_relu", function, x, mult, constraint, negative_slope=negative_slope
    )


def hardtanh(x: Tensor, mult: float = 1.0, constraint: Constraint = OUTPUT) -> Tensor:
    """Compute a scaled hardtanh: ``x`` cut at +-1/mult."""
    return _activation("hardtanh", functional.hardtanh, x, mult, constraint)


def hardsigmoid(
    x: Tensor, mult: float = 1.0, constraint: Constraint = OUTPUT
) -> Tensor:
    """Compute a scaled hard sigmoid."""
    return _activation("hardsigmoid", functional.hardsigmoid, x, mult, constraint)


def hardswish(x: Tensor, mult: float = 1.0, constraint: Constraint = OUTPUT) -> Tensor:
    """Compute a scaled hard SiLU."""
    return _activation("hardswish", functional.hardswish, x, mult, constraint)


def tanh(x: Tensor, mult: float = 1.0, constraint: Constraint = OUTPUT) -> Tensor:
    """Compute a scaled tanh."""
    return _activation("tanh", torch.tanh, x, mult, constraint)


def sigmoid(x: Tensor, mult: float = 1.0, constraint: Constraint = OUTPUT) -> Tensor:
    """Compute a scaled sigmoid, of standard deviation 1 about its mean."""
    return _activation("sigmoid", torch.sigmoid, x, mult, constraint)


def elu(
    x: Tensor, mult: float = 1.0, constraint: Constraint = OUTPUT, alpha: float = 1.0
) -> Tensor:
    """Compute a scaled ELU."""
    return _activation(
        "elu", lambda z: functional.elu(z, alpha), x, mult, constraint, alpha=alpha
    )


def softplus(x: Tensor, mult: float = 1.0, constraint: Constraint = OUTPUT) -> Tensor:
    """Compute a scaled softplus, of standard deviation 1 about its mean."""
    return _activation("softplus", functional.softplus, x, mult, constraint)


def mish(x: Tensor, mult: float = 1.0, constraint: Constraint = OUTPUT) -> Tensor:
    """Compute a scaled Mish."""
    return _activation("mish", functional.mish, x, mult, constraint)


def _gated(
    op: str,
    function: Callable[[Tensor], Tensor],
    inputs: tuple[Tensor, Tensor],
    mult: float,
    constraint: Constraint,
) -> Tensor:
    """Compute a scaled ``x * f(mult * gate) / mult`` by the rule of its name."""
    forward, of_input, of_gate = numbers(op, mult, constraint)
    x, gate = scale_bwd(inputs[0], of_input), scale_bwd(inputs[1], of_gate)
    y = x * (function(gate) if mult == 1 else function(gate * mult) / mult)
    return scale_fwd(y, forward)


def silu_glu(
    x: Tensor, gate: Tensor, mult: float = 1.0, constraint: Constraint = OUTPUT
) -> Tensor:
    """Compute a scaled SwiGLU: ``x * silu(mult * gate) / mult``."""
    return _gated("silu_glu", functional.silu, (x, gate), mult, constraint)


def gelu_glu(
    x: Tensor, gate: Tensor, mult: float = 1.0, constraint: Constraint = OUTPUT
) -> Tensor:
    """Compute a scaled GEGLU."""
    return _gated("gelu_glu", functional.gelu, (x, gate), mult, constraint)


def relu_glu(
    x: Tensor, gate: Tensor, mult: float = 1.0, constraint: Constraint = OUTPUT
) -> Tensor:
    """Compute a scaled ReGLU."""
    return _gated("relu_glu", functional.relu, (x, gate), mult, constraint)


def sigmoid_glu(
    x: Tensor, gate: Tensor, mult: float = 1.0, constraint: Constraint = OUTPUT
) -> Tensor:
    """Compute a scaled GLU, which has a sigmoid."""
    return _gated("sigmoid_glu", torch.sigmoid, (x, gate), mult, constraint)


def tanh_glu(
    x: Tensor, gate: Tensor, mult: float = 1.0, constraint: Constraint = OUTPUT
) -> Tensor:
    """Compute a scaled GLU with a tanh."""
    return _gated("tanh_glu", torch.tanh, (x, gate), mult, constraint)


def softmax(
    x: Tensor, dim: int = -1, mult: float = 1.0, constraint: Constraint = OUTPUT
) -> Tensor:
    """Compute ``softmax(mult * x)``, of root mean square 1.

    Args:
        x: Logits.
        dim: Dimension that is summed; its extent becomes a constant of a captured
            program.
        mult: Inverse temperature.
        constraint: Constraint of the two factors.
    """
    forward, backward = numbers("softmax", mult, constraint, size=x.shape[dim])
    return scale_fwd(functional.softmax(scale_bwd(x, backward) * mult, dim), forward)


def dropout(
    x: Tensor, p: float = 0.5, *, training: bool = True, constraint: Constraint = OUTPUT
) -> Tensor:
    """Drop elements with probability ``p``, and keep the scale of the rest."""
    if not training:
        return x
    forward, backward = numbers("dropout", 1.0, constraint, p=p)
    return scale_fwd(functional.dropout(scale_bwd(x, backward), p), forward)


# Scaled contractions: linear layers, products, convolutions, attention, embedding.
#
# Factors of inputs are joined with that of the output by ``constraint``; weights and
# biases keep their own, as their gradients end there.

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
    batch = _broadcast_shapes(left.shape[:-2], right.shape[:-2])
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
    factors = rules.embedding(vocabulary=weight.shape[0], tokens=tokens.numel())
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


# Scaled losses: mean values, with unit gradients.


def cross_entropy(
    logits: Tensor, target: Tensor, mult: float = 1.0, ignore_index: int = -100
) -> Tensor:
    """Return the mean cross entropy of ``mult * logits``, with a unit gradient.

    The value is that of torch's function: no factor of it depends on the batch.

    Args:
        logits: (batch, classes, ...) or (classes,).
        target: Class indices, (batch, ...) or ().
        mult: Inverse temperature.
        ignore_index: Class index of targets that do not count.

    Raises:
        ArgumentError: The target holds probabilities.
    """
    if target.is_floating_point():
        msg = (
            f"cross_entropy with a target of {target.dtype}; want class indices of an "
            "integer dtype: target.argmax(1)"
        )
        raise ArgumentError(msg)
    classes = logits.shape[1 if logits.dim() > 1 else 0]
    _, unit = numbers("cross_entropy", mult, None, classes=classes, batch=1)
    logits = scale_bwd(logits, unit * target.numel())
    return functional.cross_entropy(logits * mult, target, ignore_index=ignore_index)


def mse_loss(x: Tensor, target: Tensor) -> Tensor:
    """Return the mean squared error, with unit gradients of both operands.

    Raises:
        ArgumentError: The shapes differ.
    """
    if x.shape != target.shape:
        msg = (
            f"mse_loss of shapes {tuple(x.shape)} and {tuple(target.shape)}; want "
            "equal ones: torch.broadcast_tensors"
        )
        raise ArgumentError(msg)
    backward = rules.mse_loss(size=x.numel()).backward
    x = scale_bwd(x, backward["input"])
    return functional.mse_loss(x, scale_bwd(target, backward["target"]))


# Scaled normalisations: only the gradients of weight and bias need factors.


def layer_norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise, with gradients of weight and bias at unit scale."""
    backward = shapes.of_norm(x.shape, len(normalized_shape)).backward
    weight = weight if weight is None else scale_bwd(weight, backward["weight"])
    bias = bias if bias is None else scale_bwd(bias, backward["bias"])
    return functional.layer_norm(x, list(normalized_shape), weight, bias, eps)


def rms_norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Divide by the root mean square, with the gradient of the weight at unit scale."""
    backward = shapes.of_norm(x.shape, len(normalized_shape)).backward
    weight = weight if weight is None else scale_bwd(weight, backward["weight"])
    return functional.rms_norm(x, list(normalized_shape), weight, eps)


# Scaled sums and residual branches.


def add(
    left: Tensor, right: Tensor, constraint: Constraint = "to_output_scale"
) -> Tensor:
    """Add tensors of unit scale; the gradient of a broadcast one sums its copies."""
    result = _broadcast_shapes(left.shape, right.shape)
    found = shapes.of_add(left.shape, right.shape, result)
    factors = constrained(found, constraint)
    left = scale_bwd(left, factors.backward["left"])
    right = scale_bwd(right, factors.backward["right"])
    return scale_fwd(left + right, factors.forward)


def residual_split(x: Tensor, tau: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return ``x`` for the branch and for the skip, with their gradients weighed.

    Args:
        x: Where both paths start.
        tau: Weight of the branch; that of the skip is 1.
    """
    backward = rules.residual(tau=tau).backward
    return scale_bwd(x, backward["branch"]), scale_bwd(x, backward["skip"])


def residual_add(branch: Tensor, skip: Tensor, tau: float = 1.0) -> Tensor:
    """Add a branch to its skip, weighed so that a unit scale stays."""
    weights = rules.residual(tau=tau).backward
    return scale_fwd(branch, weights["branch"]) + scale_fwd(skip, weights["skip"])


def residual_apply(
    function: Callable[[Tensor], Tensor], x: Tensor, tau: float = 1.0
) -> Tensor:
    """Return ``x`` plus ``tau`` times the function of it, at unit scale."""
    branch, skip = residual_split(x, tau)
    return residual_add(function(branch), skip, tau)
