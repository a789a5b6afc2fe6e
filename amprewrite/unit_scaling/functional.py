"""Scaled ops of torch: unit scale in, unit scale out, and so for every gradient.

Inputs and weights are drawn with standard deviation 1 and biases are 0; the rules of
:mod:`amprewrite.unit_scaling` keep that scale. Extents may vary in captured programs,
except those that a softmax sums over. Complex tensors are refused.
"""

from amprewrite.unit_scaling.torch.activations import (
    dropout,
    elu,
    gelu,
    gelu_glu,
    hardsigmoid,
    hardswish,
    hardtanh,
    leaky_relu,
    mish,
    relu,
    relu6,
    relu_glu,
    sigmoid,
    sigmoid_glu,
    silu,
    silu_glu,
    softmax,
    softplus,
    tanh,
    tanh_glu,
)
from amprewrite.unit_scaling.torch.contractions import (
    conv1d,
    conv2d,
    embedding,
    linear,
    linear_readout,
    matmul,
    scaled_dot_product_attention,
)
from amprewrite.unit_scaling.torch.losses import cross_entropy, mse_loss
from amprewrite.unit_scaling.torch.norms import layer_norm, rms_norm
from amprewrite.unit_scaling.torch.sums import (
    add,
    residual_add,
    residual_apply,
    residual_split,
)

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
