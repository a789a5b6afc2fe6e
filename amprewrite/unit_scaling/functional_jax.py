"""Scaled ops of JAX: unit scale in, unit scale out, and so for every gradient.

Names, arguments and layouts are those of :mod:`amprewrite.unit_scaling.functional`, so
that a network can be moved; random numbers come from keys. Inputs and weights are drawn
with standard deviation 1 and biases are 0. Complex arrays are refused.
"""

from collections.abc import Callable, Sequence
from typing import Any

from amprewrite.errors import ArgumentError, UnsupportedError
from amprewrite.frameworks.jaxpr.compat.untyped import jax, jnp, lax
from amprewrite.unit_scaling import rules, shapes
from amprewrite.unit_scaling.jax.scale import scale_bwd, scale_fwd
from amprewrite.unit_scaling.rules import Factors, constrained

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


# Factors as numbers, and shapes with extents that may vary in exported programs.

Array = Any


def shape_of(x: Array) -> tuple[Any, ...]:
    """Return the extents of ``x``; those that are symbols as scalars of the program."""
    return tuple(
        extent if isinstance(extent, int) else jnp.asarray(extent, jnp.float32)
        for extent in x.shape
    )


def numbers(
    op: str, mult: float, constraint: str | None, **shape: Any
) -> tuple[float, ...]:
    """Return the factors of an op: the output's, then those of the inputs.

    Raises:
        UnsupportedError: An extent that the rule integrates over is a symbol.
    """
    for key, extent in shape.items():
        if not isinstance(extent, (int, float)):
            msg = (
                f"the rule of {op} needs {key} as a number, and it is the symbol "
                f"{extent}; export with a fixed extent there"
            )
            raise UnsupportedError(msg)
    return shapes.numbers(op, float(mult), constraint, tuple(shape.items()))


# Scaled activations, gated linear units, softmax and dropout.
#
# Each activation computes ``f(mult * x) / mult``: ``mult`` sets how far a unit input
# reaches into what is not linear. By default one factor, that of the output, is applied
# both ways; ``constraint=None`` applies each its own.

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


# Scaled contractions: linear layers, products, convolutions, attention, embedding.
#
# Weights have the layouts of torch. Factors of inputs are joined with that of the
# output by ``constraint``; weights and biases keep their own, as their gradients end
# there.

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
    factors = rules.embedding(vocabulary=weight.shape[0], tokens=count)
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


# Scaled losses: mean values, with unit gradients.


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
    backward = rules.mse_loss(size=shapes.count(shape_of(x))).backward
    x = scale_bwd(x, backward["input"])
    return jnp.square(x - scale_bwd(target, backward["target"])).mean()


# Scaled normalisations: only the gradients of weight and bias need factors.


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


# Scaled sums and residual branches.


def add(left: Array, right: Array, constraint: Constraint = "to_output_scale") -> Array:
    """Add arrays of unit scale; the gradient of a broadcast one sums its copies."""
    left, right = jnp.asarray(left), jnp.asarray(right)
    given = shape_of(left), shape_of(right)
    found = shapes.of_add(*given, shape_of(jnp.broadcast_arrays(left, right)[0]))
    factors = constrained(found, constraint)
    left = scale_bwd(left, factors.backward["left"])
    right = scale_bwd(right, factors.backward["right"])
    return scale_fwd(left + right, factors.forward)


def residual_split(x: Array, tau: float = 1.0) -> tuple[Array, Array]:
    """Return ``x`` for the branch and for the skip, with their gradients weighed.

    Args:
        x: Where both paths start.
        tau: Weight of the branch; that of the skip is 1.
    """
    backward = rules.residual(tau=tau).backward
    return scale_bwd(x, backward["branch"]), scale_bwd(x, backward["skip"])


def residual_add(branch: Array, skip: Array, tau: float = 1.0) -> Array:
    """Add a branch to its skip, weighed so that a unit scale stays."""
    weights = rules.residual(tau=tau).backward
    return scale_fwd(branch, weights["branch"]) + scale_fwd(skip, weights["skip"])


def residual_apply(
    function: Callable[[Array], Array], x: Array, tau: float = 1.0
) -> Array:
    """Return ``x`` plus ``tau`` times the function of it, at unit scale."""
    branch, skip = residual_split(x, tau)
    return residual_add(function(branch), skip, tau)
