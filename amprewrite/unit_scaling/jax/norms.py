"""Scaled normalisations: only the gradients of weight and bias need factors."""

from collections.abc import Sequence
from typing import Any

from amprewrite.frameworks.jaxpr.compat.untyped import jnp, lax
from amprewrite.unit_scaling.jax.numbers import shape_of
from amprewrite.unit_scaling.jax.scale import scale_bwd
from amprewrite.unit_scaling.rules import shapes

Array = Any


def layer_norm(
    x: Array,
    normalized_shape: Sequence[int],
    weight: Array = None,
    bias: Array = None,
    eps: float = 1e-5,
) -> Array:
    """Normalise in at least float32, with unit gradients of weight and bias.

    Args:
        x: (..., *normalized_shape).
        normalized_shape: The last extents, which are normalised over.
        weight: Of that shape; None for none.
        bias: The same.
        eps: Added to the variance.
    """
    backward = shapes.of_norm(shape_of(x), len(normalized_shape)).backward
    axes = tuple(range(-len(normalized_shape), 0))
    wide = jnp.asarray(x).astype(jnp.promote_types(x.dtype, jnp.float32))
    wide = wide - wide.mean(axes, keepdims=True)
    y = wide * lax.rsqrt(jnp.square(wide).mean(axes, keepdims=True) + eps)
    if weight is not None:
        y = y * scale_bwd(weight, backward["weight"])
    if bias is not None:
        y = y + scale_bwd(bias, backward["bias"])
    return y.astype(x.dtype)


def rms_norm(
    x: Array,
    normalized_shape: Sequence[int],
    weight: Array = None,
    eps: float = 1e-5,
) -> Array:
    """Divide by the root mean square in at least float32; see :func:`layer_norm`."""
    backward = shapes.of_norm(shape_of(x), len(normalized_shape)).backward
    axes = tuple(range(-len(normalized_shape), 0))
    wide = jnp.asarray(x).astype(jnp.promote_types(x.dtype, jnp.float32))
    y = wide * lax.rsqrt(jnp.square(wide).mean(axes, keepdims=True) + eps)
    if weight is not None:
        y = y * scale_bwd(weight, backward["weight"])
    return y.astype(x.dtype)
