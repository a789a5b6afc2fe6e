"""Rounding to 8-bit formats with a scale for the whole tensor."""

from typing import Any, Literal

from amprewrite.dtypes.formats import format_of
from amprewrite.dtypes.rounding.grid import power_of_two, quantise, quantise_by
from amprewrite.dtypes.rounding.library import (
    as_dtype,
    eight_bits,
    namespace_of,
    source_of,
)


def quantise_scaled(x: Any, dtype: str, scaling: Literal["none", "current"]) -> Any:  # noqa: ANN401  # any library's
    """Round a float array to an 8-bit format, with a scale for the whole array.

    The scale is a power of two, so that it rounds nothing by itself: the largest finite
    number times the scale is in the upper half of the range, up to the largest number.

    Args:
        x: An array of NumPy, JAX or torch, of any float dtype of 16 bits or more.
        dtype: Name of the format, such as ``float8_e4m3fn``.
        scaling: ``current``: a scale from the numbers of ``x``. ``none``: no scale.

    Returns:
        An array of the dtype and shape of ``x``, with the scale divided out again.

    Raises:
        PromotionError: ``x`` holds no floats, or ``dtype`` is no 8-bit float.

    Source: Micikevicius et al., FP8 Formats for Deep Learning (arXiv 2209.05433).
    """
    if scaling == "none" or 0 in x.shape:
        return quantise(x, dtype)
    wide = as_dtype(x, "float64" if source_of(x) == "float64" else "float32")
    largest = _largest_finite(wide)
    first = _scale(largest, dtype)
    return quantise_by(x, dtype, (first, _scale(largest * first, dtype)))


def scale_of(x: Any, dtype: str) -> Any:  # noqa: ANN401  # any library's
    """Return the power of two by which ``x`` fills the range of an 8-bit format.

    Args:
        x: A float32 or float64 array with at least one element.
        dtype: Name of the format.

    Returns:
        A scalar of the library and dtype of ``x``, a normal number as its reciprocal
        is. So it ends at 2**126 in float32, for numbers below about 2**-118.
    """
    return _scale(_largest_finite(x), dtype)


def _largest_finite(x: Any) -> Any:  # noqa: ANN401
    xp = namespace_of(x)
    return abs(xp.where(xp.isfinite(x), x, 0.0)).max()


def _scale(largest: Any, dtype: str) -> Any:  # noqa: ANN401
    """Return the scale for the largest number; 1 once the largest fills the range."""
    xp, most = namespace_of(largest), eight_bits(dtype).max
    smallest = format_of(source_of(largest)).smallest_normal
    bounded = xp.where(largest == 0, 1.0, largest).clip(most * smallest, None)
    return power_of_two(most / bounded, xp)
