"""Scaled ops of JAX: unit scale in, unit scale out, and so for every gradient.

Names, arguments and layouts are those of :mod:`amprewrite.unit_scaling.functional`, so
that a network can be moved; random numbers come from keys. Inputs and weights are drawn
with standard deviation 1 and biases are 0. Complex arrays are refused.
"""

from amprewrite.unit_scaling.jax.activations import (
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
from amprewrite.unit_scaling.jax.contractions import (
    conv1d,
    conv2d,
    embedding,
    linear,
    linear_readout,
    matmul,
    scaled_dot_product_attention,
)
from amprewrite.unit_scaling.jax.losses import cross_entropy, mse_loss
from amprewrite.unit_scaling.jax.norms import layer_norm, rms_norm
from amprewrite.unit_scaling.jax.sums import (
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
