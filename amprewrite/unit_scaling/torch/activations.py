"""Scaled activations, gated linear units, softmax and dropout.

Each activation computes ``f(mult * x) / mult``: ``mult`` sets how far a unit input
reaches into what is not linear. By default one factor, that of the output, is applied
both ways; ``constraint=None`` applies each its own.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from amprewrite.unit_scaling.torch.numbers import numbers
from amprewrite.unit_scaling.torch.scale import scale_bwd, scale_fwd

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
