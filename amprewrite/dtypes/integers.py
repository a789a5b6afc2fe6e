"""Promotion of bools and integers in float functions and in sums.

Sources: torch, ``get_dtype_from_self`` in aten/native/ReduceOpsUtils.h; JAX,
``dtypes.to_inexact_dtype``; NumPy, the loops of its ufuncs (``numpy.exp.types``); the
array API standard, ``sum`` and ``prod``. Measured on torch 2.13, JAX 0.10.2, NumPy 2.4
and array-api-strict 2.6.1.
"""

from amprewrite.dtypes.formats import format_of
from amprewrite.dtypes.promotion import promote_types
from amprewrite.errors import PromotionError

_SIXTY_FOUR = 64


def is_whole(dtype: str) -> bool:
    """Return whether ``dtype`` holds bools or integers."""
    return format_of(dtype).kind in ("bool", "int", "uint")


def as_float(dtype: str, system: str, default_dtype: str = "float32") -> str:
    """Return the float dtype of ``exp`` and its like on a bool or an integer.

    torch: the default dtype. JAX: float32, float64 from 64 bits on. NumPy: the first
    float to which a cast is safe (its division and its mean always make float64).
    Floats and complex numbers stay.

    Raises:
        PromotionError: The array API standard defines such functions for floats only.
    """
    if not is_whole(dtype):
        return dtype
    if system == "torch":
        return default_dtype
    if system in ("numpy", "numpy1"):
        return promote_types(dtype, "float16", "numpy")
    if system == "array-api":
        raise PromotionError(f"found {dtype}; want floats: cast it explicitly")
    return "float64" if format_of(dtype).bits == _SIXTY_FOUR else "float32"


def widened(dtype: str, minimum: str, system: str) -> str:
    """Return a bool or an integer widened to ``minimum``, the dtype of its ``sum``.

    torch uses ``minimum`` itself; the others keep unsigned dtypes unsigned. Floats and
    complex numbers are not changed.

    Raises:
        PromotionError: The array API standard sums no bools.
    """
    if not is_whole(dtype):
        return dtype
    if dtype == "bool" and system == "array-api":
        raise PromotionError("found bool; want numbers: cast it explicitly")
    if system == "torch":
        return minimum
    bits = max(format_of(dtype).bits, format_of(minimum).bits)
    return f"uint{bits}" if format_of(dtype).kind == "uint" else f"int{bits}"
