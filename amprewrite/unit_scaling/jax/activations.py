"""Scaled activations, gated linear units, softmax and dropout.

Each activation computes ``f(mult * x) / mult``: ``mult`` sets how far a unit input
reaches into what is not linear. By default one factor, that of the output, is applied
both ways; ``constraint=None`` applies each its own.
"""

from collections.abc import Callable
from typing import Any

from amprewrite.errors import ArgumentError
from amprewrite.frameworks.jaxpr.compat.untyped import jax, jnp
from amprewrite.unit_scaling.jax.numbers import numbers
from amprewrite.unit_scaling.jax.scale import scale_bwd, scale_fwd

Array = Any
Constraint = str | None
OUTPUT = "to_output_scale"


def _activation(
    op: str,
    function: Callable[[Array], Array],
    x: Array,
    mult: float,
    constraint: Constraint,
    **parameters: float,
) -> Array:
    """Compute a scaled activation by the rule of its name."""
    forward, backward = numbers(op, mult, constraint, **parameters)
    x = scale_bwd(x, backward)
    y = function(x) if mult == 1 else function(x * mult) / mult
    return scale_fwd(y, forward)


def gelu(
    x: Array,
    mult: float = 1.0,
    constraint: Constraint = OUTPUT,
    approximate: str = "none",
) -> Array:
    """Compute a scaled GELU; ``approximate="tanh"`` takes that form and its rule."""
    tanh = approximate == "tanh"

    def function(z: Array) -> Array:
        return jax.nn.gelu(z, approximate=tanh)

    return _activation("gelu_tanh" if tanh else "gelu", function, x, mult, constraint)


def silu(x: Array, mult: float = 1.0, constraint: Constraint = OUTPUT) -> Array:
    """Compute a scaled SiLU."""
    return _activation("silu", jax.nn.silu, x, mult, constraint)


def relu(x: Array, mult: float = 1.0, constraint: Constraint = OUTPUT) -> Array:
    """Compute a scaled ReLU, which no ``mult`` changes."""
    return _activation("relu", jax.nn.relu, x, mult, constraint)


def relu6(x: Array, mult: float = 1.0, constraint: Constraint = OUTPUT) -> Array:
    """Compute a scaled ReLU6."""
    return _activation("relu6", jax.nn.relu6, x, mult, constraint)


def leaky_relu(
    x: Array,
    mult: float = 1.0,
    constraint: Constraint = OUTPUT,
    negative_slope: float = 0.01,
) -> Array:
    """Compute a scaled leaky ReLU."""

    def function(z: Array) -> Array:
        return jax.nn.leaky_relu(z, negative_slope)

    return _activation(
        "leaky_relu", function, x, mult, constraint, negative_slope=negative_slope
    )


def hardtanh(x: Array, mult: float = 1.0, constraint: Constraint = OUTPUT) -> Array:
    """Compute a scaled hardtanh: ``x`` cut at +-1/mult."""
    return _activation("hardtanh", jax.nn.hard_tanh, x, mult, constraint)


def hardsigmoid(x: Array, mult: float = 1.0, constraint: Constraint = OUTPUT) -> Array:
    """Compute a scaled hard sigmoid."""
    return _activation("hardsigmoid", jax.nn.hard_sigmoid, x, mult, constraint)


def hardswish(x: Array, mult: float = 1.0, constraint: Constraint = OUTPUT) -> Array:
    """Compute a scaled hard SiLU."""
    return _activation("hardswish", jax.nn.hard_swish, x, mult, constraint)


def tanh(x: Array, mult: float = 1.0, constraint: Constraint = OUTPUT) -> Array:
    """Compute a scaled tanh."""
    return _activation("tanh", jnp.tanh, x, mult, constraint)


def sigmoid(x: Array, mult: float = 1.0, constraint: Constraint = OUTPUT) -> Array:
    """Compute a scaled sigmoid, of standard deviation 1 about its mean."""
    return _activation("sigmoid", jax.nn.sigmoid, x, mult, constraint)


def elu(
    x: Array, mult: float = 1.0, constraint: Constraint = OUTPUT, alpha: float = 1.0
) -> Array:
    """Compute a scaled ELU."""
    return _activation(
        "elu", lambda z: jax.nn.elu(z, alpha), x, mult, constraint, alpha=alpha
    )


def softplus(x: Array, mult: float = 1.0, constraint: Constraint = OUTPUT) -> Array:
    """Compute a scaled softplus, of standard deviation 1 about its mean."""
    return _activation("softplus", jax.nn.softplus, x, mult, constraint)


def mish(x: Array, mult: float = 1.0, constraint: Constraint = OUTPUT) -> Array:
    """Compute a scaled Mish."""
    return _activation("mish", jax.nn.mish, x, mult, constraint)


def _gated(
    op: str,
    function: Callable[[Array], Array],
    inputs: tuple[Array, Array],
    mult: float,
    constraint: Constraint,
) -> Array:
    """Compute a scaled ``x * f(mult * gate) / mult`` by the rule of its name."""
    forward, of_input, of_gate = numbers(op, mult, constraint)
    x, gate = scale_bwd(inputs[0], of_input), scale_bwd(inputs[1], of_gate)
    y = x * (function(gate) if mult == 1 else function(gate * mult) / mult)
    return scale_fwd(y, forward)


def silu_glu(
    x: Array, gate: Array, mult: float = 1.0, constraint: Constraint = OUTPUT
) -> Array:
    """Compute a scaled SwiGLU: ``x * silu(mult * gate) / mult``."""
    return _gated("silu_glu", jax.nn.silu, (x, gate), mult, constraint)


def gelu_glu(
    x: Array, gate: Array, mult: float = 1.0, constraint: Constraint = OUTPUT
) -> Array:
    """Compute a scaled GEGLU, with the GELU of erf."""

    def function(z: Array) -> Array:
        return jax.nn.gelu(z, approximate=False)

    return _gated("gelu_glu", function, (x, gate), mult, constraint)


def relu_glu(
    x: Array, gate: Array, mult: float = 1.0, constraint: Constraint = OUTPUT
) -> Array:
    """Compute a scaled ReGLU."""
    return _gated("relu_glu", jax.nn.relu, (x, gate), mult, constraint)


def sigmoid_glu(
    x: Array, gate: Array, mult: float = 1.0, constraint: Constraint = OUTPUT
) -> Array:
    """Compute a scaled GLU, which has a sigmoid."""
    return _gated("sigmoid_glu", jax.nn.sigmoid, (x, gate), mult, constraint)


def tanh_glu(
    x: Array, gate: Array, mult: float = 1.0, constraint: Constraint = OUTPUT
) -> Array:
    """Compute a scaled GLU with a tanh."""
    return _gated("tanh_glu", jnp.tanh, (x, gate), mult, constraint)


def softmax(
    x: Array, axis: int = -1, mult: float = 1.0, constraint: Constraint = OUTPUT
) -> Array:
    """Compute ``softmax(mult * x)``, of root mean square 1.

    Args:
        x: Logits.
        axis: Axis that is summed, of a fixed extent.
        mult: Inverse temperature.
        constraint: Constraint of the two factors.
    """
    forward, backward = numbers("softmax", mult, constraint, size=x.shape[axis])
    return scale_fwd(jax.nn.softmax(scale_bwd(x, backward) * mult, axis), forward)


def dropout(
    x: Array,
    p: float = 0.5,
    *,
    key: Array = None,
    training: bool = True,
    constraint: Constraint = OUTPUT,
) -> Array:
    """Drop elements with probability ``p``, and keep the scale of the rest.

    Raises:
        ArgumentError: There is no key of random numbers to train with.
    """
    if not training or p == 0:
        return x
    forward, backward = numbers("dropout", 1.0, constraint, p=p)
    return scale_fwd(drop(scale_bwd(x, backward), p, key), forward)


def drop(x: Array, p: float, key: Array) -> Array:
    """Drop elements with probability ``p``, and divide the rest by 1 - p.

    Raises:
        ArgumentError: There is no key of random numbers.
    """
    if key is None:
        msg = f"dropout with p={p} has no key; want one: key=jax.random.key(0)"
        raise ArgumentError(msg)
    kept = jax.random.bernoulli(key, 1 - p, x.shape)
    return jnp.where(kept, x / (1 - p), 0).astype(x.dtype)
