"""Rounding of values: by casts, and of contractions to 8 bits.

XLA keeps excess precision where it may (``xla_allow_excess_precision``, on by default):
a processor without bfloat16 arithmetic computes in float32, and a cast back to float32
then returns the value from before the rounding. Another op that reads the same value in
bfloat16 still gets it rounded, so that ``x == max(x, y)`` never held. Excess precision
is no error by itself, but a comparison needs one value for both of its operands:
:func:`widened` cannot be undone by a compiler.

Operands that are rounded to 8 bits have the derivative of the identity (straight
through). A result whose cotangent is rounded passes through a primitive that is the
identity, which JAX transposes into a rounding: it is linear, so that forward mode,
reverse mode and batching compose.
"""

from collections.abc import Sequence
from typing import Any

from amprewrite.dtypes import itemsize
from amprewrite.dtypes.rounding import quantise_scaled
from amprewrite.frameworks.jaxpr.compat.primitives import new_unary
from amprewrite.frameworks.jaxpr.compat.untyped import jnp, lax
from amprewrite.frameworks.jaxpr.program.ops import dtype_name
from amprewrite.ir import Op
from amprewrite.ir.graph import factor_indices
from amprewrite.plan import Decision

BITS = {"bfloat16": (8, 7)}
"""Exponent and mantissa bits of formats with the exponent range of float32.

``reduce_precision`` flushes subnormal numbers in other formats: in float16, 6e-5 became
0.
"""


def widened(value: Any, dtype: str) -> Any:
    """Return ``value`` in ``dtype``, with the rounding of its storage kept.

    The rounding is bound by ``reduce_precision``, which XLA may not drop and fuses with
    its users. For formats with fewer exponents, the value is put behind
    ``optimization_barrier``. Neither changes a value.

    Args:
        value: An array of floats, of any shape.
        dtype: Name of a float dtype with more bits.
    """
    stored = dtype_name(value)
    wide = jnp.dtype(dtype)
    if stored in BITS:
        exponent, mantissa = BITS[stored]
        found = lax.convert_element_type(value, wide)
        return lax.reduce_precision(found, exponent, mantissa)
    if itemsize(stored) <= 2:  # noqa: PLR2004  # bytes
        value = lax.optimization_barrier(value)
    return lax.convert_element_type(value, wide)


def widens(value: Any, dtype: str) -> bool:
    """Return whether ``dtype`` has more bytes than the float dtype of ``value``."""
    return itemsize(dtype_name(value)) < itemsize(dtype)


def abs_square(value: Any) -> Any:
    """Return ``|value|**2`` as complex numbers with an imaginary part of zero."""
    real, imag = lax.real(value), lax.imag(value)
    square = real * real + imag * imag
    return lax.complex(square, lax.full_like(square, 0))


def quantise_operand(value: Any, name: str, scaling: str) -> Any:
    """Return ``value`` rounded to the format ``name``, with derivative 1."""
    return _operand(value, name=name, scaling=scaling)


def quantise_cotangent(value: Any, name: str, scaling: str) -> Any:
    """Return ``value``; its cotangent is rounded to the format ``name``."""
    return _cotangent(value, name=name, scaling=scaling)


def quantise_factors(op: Op, decision: Decision, operands: Sequence[Any]) -> list[Any]:
    """Return the operands of a contraction, its factors rounded to 8 bits."""
    rounded, name = list(operands), decision.forward
    for index in factor_indices(op):
        rounded[index] = quantise_operand(rounded[index], name, decision.scaling)
    return rounded


def _rounded(value: Any, *, name: str, scaling: Any) -> Any:
    return quantise_scaled(value, name, scaling)


def _unchanged(value: Any, **_: str) -> Any:
    """Return a tangent or cotangent: JAX transposes programs linear in the operand."""
    return value


def _tangent(tangent: Any, **how: str) -> Any:
    return _cotangent(tangent, **how)


_operand = new_unary("amprewrite_quantise", _unchanged, _unchanged, _rounded)
_cotangent = new_unary("amprewrite_quantise_cotangent", _tangent, quantise_operand)
