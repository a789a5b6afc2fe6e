"""Scaled losses: mean values, with unit gradients."""

from typing import Any

from amprewrite.errors import ArgumentError
from amprewrite.frameworks.jaxpr.compat.untyped import jax, jnp
from amprewrite.unit_scaling.jax.numbers import numbers, shape_of
from amprewrite.unit_scaling.jax.scale import scale_bwd
from amprewrite.unit_scaling.rules import extents, shapes

Array = Any


def cross_entropy(
    logits: Array, target: Array, mult: float = 1.0, ignore_index: int = -100
) -> Array:
    """Return the mean cross entropy of ``mult * logits``, with a unit gradient.

    The value is the plain mean: no factor of it depends on the batch.

    Args:
        logits: (batch, classes, ...) or (classes,).
        target: Class indices, (batch, ...) or ().
        mult: Inverse temperature.
        ignore_index: Class index of targets that do not count.

    Raises:
        ArgumentError: The target holds probabilities.
    """
    target = jnp.asarray(target)
    if not jnp.issubdtype(target.dtype, jnp.integer):
        msg = (
            f"cross_entropy with a target of {target.dtype}; want class indices of an "
            "integer dtype: target.argmax(1)"
        )
        raise ArgumentError(msg)
    axis = 1 if logits.ndim > 1 else 0
    classes = logits.shape[axis]
    _, unit = numbers("cross_entropy", mult, None, classes=classes, batch=1)
    logits = scale_bwd(logits, unit * shapes.count(shape_of(target)))
    chances = jax.nn.log_softmax(logits * mult, axis)
    index = jnp.expand_dims(jnp.where(target == ignore_index, 0, target), axis)
    losses = -jnp.take_along_axis(chances, index, axis).squeeze(axis)
    counts = target != ignore_index
    return jnp.where(counts, losses, 0).sum() / counts.sum()


def mse_loss(x: Array, target: Array) -> Array:
    """Return the mean squared error, with unit gradients of both operands.

    Raises:
        ArgumentError: The shapes differ.
    """
    if x.shape != target.shape:
        msg = (
            f"mse_loss of shapes {x.shape} and {target.shape}; want equal ones: "
            "jnp.broadcast_arrays"
        )
        raise ArgumentError(msg)
    backward = extents.mse_loss(size=shapes.count(shape_of(x))).backward
    x = scale_bwd(x, backward["input"])
    return jnp.square(x - scale_bwd(target, backward["target"])).mean()
