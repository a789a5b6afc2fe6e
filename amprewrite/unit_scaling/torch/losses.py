"""Scaled losses: mean values, with unit gradients."""

from torch import Tensor
from torch.nn import functional

from amprewrite.errors import ArgumentError
from amprewrite.unit_scaling.rules import extents
from amprewrite.unit_scaling.torch.numbers import numbers
from amprewrite.unit_scaling.torch.scale import scale_bwd


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
    backward = extents.mse_loss(size=x.numel()).backward
    x = scale_bwd(x, backward["input"])
    return functional.mse_loss(x, scale_bwd(target, backward["target"]))
