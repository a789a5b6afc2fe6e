"""Casts to 8-bit dtypes that saturate, with the same bits in every library.

The libraries' own casts differ beyond the range: torch makes an infinity 448 in
float8_e4m3fn, JAX and ml_dtypes NaN. They also differ in the bits of a NaN.
"""

from typing import Any

from amprewrite.dtypes.arrays import library_of
from amprewrite.dtypes.rounding.grid import quantise
from amprewrite.dtypes.rounding.library import as_dtype, eight_bits, namespace_of


def saturating_cast(x: Any, dtype: str, *, draws: Any = None) -> Any:  # noqa: ANN401  # any library's
    """Cast a float array to an 8-bit dtype; values are those of :func:`quantise`.

    Args:
        x: An array of NumPy, JAX or torch, of any float dtype of 16 bits or more.
        dtype: Name of the dtype, such as ``float8_e4m3fn``.
        draws: Numbers of [0, 1) for stochastic rounding; None rounds to nearest.

    Returns:
        An array of ``dtype`` in the shape of ``x``; every NaN has the bits
        ``format_of(dtype).nan_bits``.

    Raises:
        PromotionError: ``x`` holds no floats, or its library has no such dtype.
    """
    value = quantise(x, dtype, draws=draws)
    result = as_dtype(value, dtype)  # exact: the value is one of the format
    target = eight_bits(dtype)
    if library_of(x) != "torch" or not target.has_infinities:
        return result  # the only NaN, or ml_dtypes' own
    xp = namespace_of(x)
    bits = xp.where(xp.isnan(value), target.nan_bits, result.view(xp.uint8))
    return bits.view(result.dtype)
