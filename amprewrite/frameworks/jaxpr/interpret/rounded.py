"""Casts between float dtypes: plain, or such that a compiler cannot undo them.

XLA keeps excess precision where it may (``xla_allow_excess_precision``, on by default):
a processor without bfloat16 arithmetic computes in float32, and a cast back to float32
then returns the value from before the rounding. Another op that reads the same value in
bfloat16 still gets it rounded, so that ``x == max(x, y)`` never held. Excess precision
is no error by itself, but a comparison needs one value for both of its operands.
"""

from typing import Any

from amprewrite.dtypes import itemsize
from amprewrite.frameworks.jaxpr.compat.untyped import jnp, lax
from amprewrite.frameworks.jaxpr.program.ops import dtype_name

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
