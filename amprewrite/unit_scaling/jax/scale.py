"""The function ``scale``: one factor forward, another one backward.

Its rule is that of the tangent, which is linear: JAX transposes it for gradients, and
so the function goes through ``jit``, ``vmap``, ``scan``, ``checkpoint``, ``jvp`` and
derivatives of any order. In a jaxpr it is a primitive named ``amprewrite_scale``, with
the factors as parameters; where a factor is traced, a ``custom_jvp_call`` of that name.
"""

import functools
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from amprewrite.errors import ArgumentError, UnsupportedError
from amprewrite.frameworks.jaxpr.compat.primitives import new_unary
from amprewrite.frameworks.jaxpr.compat.untyped import jax, jnp
from amprewrite.frameworks.jaxpr.program.program import SCALE

Array = Any
Factor = Any
"""A float, or a scalar of a tracer."""


_TRUE = jax.make_user_context(default_value=False)
"""Whether forward factors are those of the backward pass; ``jit`` traces for each."""


def true_gradients() -> AbstractContextManager[None]:
    """Take each forward factor for the backward pass too, until the context ends."""
    return _TRUE(True)


def _is_known(factor: Factor) -> bool:
    """Return whether a factor is a number when a program is traced."""
    return isinstance(factor, (int, float, np.integer, np.floating))


def _times(x: Array, factor: Factor) -> Array:
    """Multiply in at least float32, and round once to the dtype of ``x``."""
    wide = jnp.promote_types(x.dtype, jnp.float32)
    return (x.astype(wide) * factor).astype(x.dtype)


def _value(x: Array, *, forward: float, backward: float) -> Array:
    del backward
    return _times(x, forward)


def _backward(x: Array, *, forward: float, backward: float) -> Array:
    """Return a tangent or cotangent times the backward factor."""
    del forward
    return _scale_known(x, forward=backward, backward=backward)


_scale_known = new_unary(SCALE, _backward, _backward, _value)
"""The product with the factor ``forward``; its derivative is that with ``backward``."""


def amprewrite_scale(x: Array, forward: Factor, _backward: Factor) -> Array:
    """Compute the value of :func:`scale`; the name shows in jaxprs."""
    return _times(x, forward)


_scale: Any = functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))(
    amprewrite_scale
)


@_scale.defjvp
def _derivative(
    forward: Factor, backward: Factor, primals: tuple[Array], tangents: tuple[Array]
) -> tuple[Array, Array]:
    """Return the value, and the tangent times the backward factor."""
    (x,), (tangent,) = primals, tangents
    return _scale(x, forward, backward), _times(tangent, backward)


def scale(x: Array, forward: Factor, backward: Factor) -> Array:
    """Multiply ``x`` by one factor forward, and its gradient by another one backward.

    Args:
        x: A float array of any dtype and shape.
        forward: Factor of the value.
        backward: Factor of the gradient, of tangents in forward mode too.

    Returns:
        An array of the dtype of ``x``; the product is computed in at least float32 and
        rounded once.

    Raises:
        ArgumentError: ``x`` holds integers or booleans.
        UnsupportedError: ``x`` is complex.
    """
    x = jnp.asarray(x)
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        msg = (
            f"unit scaling of a complex array ({x.dtype}) has no rule; scale its real "
            "and imaginary parts: x.real, x.imag"
        )
        raise UnsupportedError(msg)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        msg = (
            f"cannot scale an array of {x.dtype}; want a float array: "
            "x.astype(jnp.float32)"
        )
        raise ArgumentError(msg)
    backward = forward if _TRUE.value else backward
    if _is_known(forward) and _is_known(backward):
        return _scale_known(x, forward=float(forward), backward=float(backward))
    return _scale(x, forward, backward)


def scale_fwd(x: Array, factor: Factor) -> Array:
    """Multiply ``x`` in the forward pass only; see :func:`scale`."""
    return scale(x, factor, 1.0)


def scale_bwd(x: Array, factor: Factor) -> Array:
    """Multiply the gradient of ``x`` in the backward pass only; see :func:`scale`."""
    return scale(x, 1.0, factor)
