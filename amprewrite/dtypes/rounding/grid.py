"""Rounding to the values of an 8-bit format, by arithmetic that is exact.

The power of two below a number is the number with its mantissa and sign cleared. A
quotient by a power of two, the rounding of the quotient to a whole number and the
product are exact in float32, so that every library and device gives the same values.
"""

from collections.abc import Sequence
from math import frexp
from typing import Any

from amprewrite.dtypes.formats import Format, format_of
from amprewrite.dtypes.rounding.library import (
    as_dtype,
    eight_bits,
    namespace_of,
    source_of,
)

_EXPONENTS = {"float32": ("int32", 0xFF << 23), "float64": ("int64", 0x7FF << 52)}
"""Integers of the same width, and the bits of the exponent among them."""


def quantise(x: Any, dtype: str, *, draws: Any = None) -> Any:  # noqa: ANN401  # any library's
    """Round a float array to the values of an 8-bit format; the dtype stays.

    A finite number beyond the range becomes the largest or the least one. Infinities
    stay where the format has them, and else are NaN, so that an overflow elsewhere is
    still seen.

    Args:
        x: An array of NumPy, JAX or torch, of any float dtype of 16 bits or more.
        dtype: Name of the format, such as ``float8_e4m3fn``.
        draws: For stochastic rounding, numbers of [0, 1) in the shape of ``x``, see
            :func:`uniform_draws`; the mean over them is ``x``. None rounds to nearest,
            ties to even.

    Returns:
        An array of the dtype and shape of ``x``.

    Raises:
        PromotionError: ``x`` holds no floats, or ``dtype`` is no such format.

    Sources: OCP 8-bit Floating Point Specification (OFP8), for float8_e4m3fn and
    float8_e5m2; Noune et al., 8-bit Numerical Formats for Deep Neural Networks (arXiv
    2206.02915), for the formats ``fnuz``.
    """
    return quantise_by(x, dtype, (), draws=draws)


def quantise_by(
    x: Any,  # noqa: ANN401  # any library's
    dtype: str,
    scales: Sequence[Any],
    *,
    draws: Any = None,  # noqa: ANN401
) -> Any:  # noqa: ANN401
    """Round a float array that is multiplied by scales, which are divided out again.

    A finite number stays finite: one beyond the range of the format, or one that
    rounding takes beyond the range of the dtype of ``x``, becomes the largest or the
    least number that both have.

    Args:
        x: As for :func:`quantise`.
        dtype: Name of the format.
        scales: Powers of two, scalars of the library of ``x``, in float32 (float64 for
            an ``x`` of float64). Their product may be beyond the range of that dtype.
        draws: As for :func:`quantise`.

    Returns:
        An array of the dtype and shape of ``x``.
    """
    target, found, xp = eight_bits(dtype), source_of(x), namespace_of(x)
    wide = as_dtype(x, "float64" if found == "float64" else "float32")
    finite = xp.isfinite(wide)
    held, limit = xp.where(finite, wide, 0.0), _largest(found, target)
    for scale in scales:
        held, room = held * scale, target.max / limit
        limit = limit * xp.where(scale < room, scale, room)
    limit = limit if scales else target.max
    held = held.clip(-limit, limit)
    spacing = power_of_two(held, xp).clip(target.smallest_normal, target.max)
    spacing = spacing * 2.0**-target.mantissa_bits
    value = _whole(held / spacing, draws, xp) * spacing
    if not target.has_negative_zero:
        value = xp.where(value == 0, 0.0, value)
    for scale in reversed(scales):
        value = value / scale
    infinite = wide if target.has_infinities else float("nan")
    value = xp.where(finite, value, xp.where(xp.isnan(wide), float("nan"), infinite))
    return as_dtype(value, found)


def _largest(source: str, target: Format) -> float:
    """Return the largest number of a dtype with the mantissa of an 8-bit format."""
    exponent = frexp(format_of(source).max)[1] - 1
    return (2.0 - 2.0**-target.mantissa_bits) * 2.0**exponent


def power_of_two(x: Any, xp: Any) -> Any:  # noqa: ANN401
    """Return the largest power of two that is not above ``abs(x)``; 0 for 0."""
    name = str(x.dtype).removeprefix("torch.")
    integer, mask = _EXPONENTS[name]
    return (x.view(getattr(xp, integer)) & mask).view(getattr(xp, name))


def _whole(steps: Any, draws: Any, xp: Any) -> Any:  # noqa: ANN401
    """Round to whole numbers, to nearest or by draws; zeros keep their sign."""
    if draws is None:
        return xp.round(steps)
    size = abs(steps)
    below = xp.floor(size)
    chosen = xp.where(draws < size - below, below + 1, below)
    return xp.copysign(chosen, steps)
