"""Scaled contractions: linear layers, products, convolutions, attention, embedding.

Weights have the layouts of torch. Factors of inputs are joined with that of the output
by ``constraint``; weights and biases keep their own, as their gradients end there.
"""

from collections.abc import Sequence
from typing import Any

from amprewrite.frameworks.jaxpr.compat.untyped import jax, jnp, lax
from amprewrite.unit_scaling.jax.activations import drop
from amprewrite.unit_scaling.jax.numbers import numbers, shape_of
from amprewrite.unit_scaling.jax.scale import scale_bwd, scale_fwd
from amprewrite.unit_scaling.rules import Factors, constrained, extents, shapes

Array = Any
Constraint = str | None
OUTPUT = "to_output_scale"
Spread = int | Sequence[int]
"""One number for all spatial dimensions, or one for each."""


def _linear(x: Array, weight: Array, bias: Array | None, factors: Factors) -> Array:
    """Compute a linear layer with the factors given."""
    backward = factors.backward
    x, weight = scale_bwd(x, backward["input"]), scale_bwd(weight, backward["weight"])
    y = x @ weight.T
    if bias is not None:
        y = y + scale_bwd(bias, backward["bias"])
    return scale_fwd(y, factors.forward)


def linear(
    x: Array, weight: Array, bias: Array = None, constraint: Constraint = OUTPUT
) -> Array:
    """Compute a scaled linear layer.

    Args:
        x: (..., in), unit scale.
        weight: (out, in), unit scale: drawn with standard deviation 1.
        bias: (out,), zero at first; None for none.
        constraint: Constraint of the factors of output and ``x``.
    """
    found = shapes.of_linear(shape_of(x), shape_of(weight))
    return _linear(x, weight, bias, constrained(found, constraint))


def linear_readout(
    x: Array, weight: Array, bias: Array = None, constraint: Constraint = None
) -> Array:
    """Compute the last layer of a model: :func:`linear` with 1/in forward.

    Its output has scale ``in ** -0.5`` at first, and grows to 1 as weights learn.
    """
    found = shapes.of_linear(shape_of(x), shape_of(weight), readout=True)
    return _linear(x, weight, bias, constrained(found, constraint))


def matmul(left: Array, right: Array, constraint: Constraint = OUTPUT) -> Array:
    """Compute a scaled product of two matrices, or of batches of them.

    Raises:
        ArgumentError: An operand is a vector.
    """
    batch = jnp.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    found = shapes.of_matmul(shape_of(left), shape_of(right), batch)
    factors = constrained(found, constraint)
    left = scale_bwd(left, factors.backward["left"])
    right = scale_bwd(right, factors.backward["right"])
    return scale_fwd(jnp.matmul(left, right), factors.forward)


def _conv(
    operands: tuple[Array, Array, Array],
    how: tuple[Spread, Spread, Spread, int],
    constraint: Constraint,
) -> Array:
    """Compute a scaled convolution; ``how`` ends with the number of groups."""
    x, weight, bias = operands
    places, groups = weight.ndim - 2, how[3]
    stride, padding, dilation = (
        [value] * places if isinstance(value, int) else value for value in how[:3]
    )
    given = shape_of(x), shape_of(weight)
    result = shapes.after_conv(*given, stride, padding, dilation)
    factors = constrained(shapes.of_conv(*given, result, groups), constraint)
    x = scale_bwd(x, factors.backward["input"])
    letters = "HW"[:places]
    y = lax.conv_general_dilated(
        x if x.ndim == weight.ndim else x[None],
        scale_bwd(weight, factors.backward["weight"]),
        stride,
        [(pad, pad) for pad in padding],
        rhs_dilation=dilation,
        dimension_numbers=(f"NC{letters}", f"OI{letters}", f"NC{letters}"),
        feature_group_count=groups,
    )
    if bias is not None:
        added = scale_bwd(bias, factors.backward["bias"])
        y = y + added.reshape(-1, *[1] * places)
    return scale_fwd(y if x.ndim == weight.ndim else y[0], factors.forward)


def conv1d(  # noqa: PLR0913, PLR0917  # signature of torch.nn.functional
    x: Array,
    weight: Array,
    bias: Array = None,
    stride: Spread = 1,
    padding: Spread = 0,
    dilation: Spread = 1,
    groups: int = 1,
    constraint: Constraint = OUTPUT,
) -> Array:
    """Compute a scaled convolution over one dimension.

    Args:
        x: (batch, channels, length) or (channels, length).
        weight: (out, channels / groups, kernel), unit scale.
        bias: (out,), zero at first; None for none.
        stride: Step of the kernel.
        padding: Zeros on both sides.
        dilation: Step between taps.
        groups: Number of groups.
        constraint: Constraint of the factors of output and ``x``.
    """
    return _conv((x, weight, bias), (stride, padding, dilation, groups), constraint)


def conv2d(  # noqa: PLR0913, PLR0917  # signature of torch.nn.functional
    x: Array,
    weight: Array,
    bias: Array = None,
    stride: Spread = 1,
    padding: Spread = 0,
    dilation: Spread = 1,
    groups: int = 1,
    constraint: Constraint = OUTPUT,
) -> Array:
    """Compute a scaled convolution over two dimensions; see :func:`conv1d`."""
    return _conv((x, weight, bias), (stride, padding, dilation, groups), constraint)


def embedding(tokens: Array, weight: Array) -> Array:
    """Look up rows of a table of unit scale; its gradient has unit scale.

    Args:
        tokens: Integers of any shape.
        weight: (vocabulary, width).
    """
    count = shapes.count(shape_of(tokens))
    factors = extents.embedding(vocabulary=weight.shape[0], tokens=count)
    return scale_bwd(weight, factors.backward["weight"])[tokens]


def scaled_dot_product_attention(  # noqa: PLR0913  # signature of torch.nn.functional
    query: Array,
    key: Array,
    value: Array,
    attn_mask: Array = None,
    dropout_p: float = 0.0,
    *,
    is_causal: bool = False,
    mult: float = 1.0,
    constraint: Constraint = OUTPUT,
    dropout_key: Array = None,
) -> Array:
    """Compute scaled attention, with logits times ``mult / head``.

    Args:
        query: (..., queries, head), unit scale.
        key: (..., keys, head).
        value: (..., keys, width).
        attn_mask: Booleans, true where a key counts, or numbers that are added to the
            logits. The rule does not know it: it counts all keys.
        dropout_p: Probability of dropout.
        is_causal: Whether row i sees the first i + 1 keys.
        mult: Inverse temperature.
        constraint: Constraint of all four factors.
        dropout_key: Key of random numbers, for dropout.

    Raises:
        ArgumentError: There is dropout and no key.
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
    logits = query @ jnp.swapaxes(key, -1, -2)
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    logits = logits * (mult / query.shape[-1])
    if is_causal:
        seen = jnp.tri(*logits.shape[-2:], dtype=bool)
        logits = jnp.where(seen, logits, -jnp.inf)
    if attn_mask is not None:
        is_choice = attn_mask.dtype == bool
        logits = (
            jnp.where(attn_mask, logits, -jnp.inf) if is_choice else logits + attn_mask
        )
    weights = jax.nn.softmax(logits, axis=-1).astype(value.dtype)
    if dropout_p:
        weights = drop(weights, dropout_p, dropout_key)
    return scale_fwd(weights @ value, forward)
