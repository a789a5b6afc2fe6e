"""Scaled normalisations: only the gradients of weight and bias need factors."""

from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional

from amprewrite.unit_scaling.rules import shapes
from amprewrite.unit_scaling.torch.scale import scale_bwd


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
