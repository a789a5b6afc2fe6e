"""Rounding of arrays to 8-bit floats, with the same bits in NumPy, JAX and torch."""

import sys
from collections.abc import Sequence
from math import frexp
from typing import Any, Literal

from amprewrite.dtypes.arrays import dtype_of, library_of
from amprewrite.dtypes.formats import EIGHT_BIT_FLOATS, Format, format_of
from amprewrite.errors import PromotionError

# The library of an array, found where the array came from; none is imported.
#
# NumPy, ``jax.numpy`` and torch call the functions used here alike: ``where``,
# ``floor``, ``round``, ``copysign``, ``isfinite``.

_NAMESPACES = {"torch": "torch", "numpy": "numpy", "jax": "jax.numpy"}


def namespace_of(array: object) -> Any:  # noqa: ANN401  # a module of functions
    """Return the module with the functions for an array."""
    return sys.modules[_NAMESPACES[library_of(array)]]


def as_dtype(array: Any, name: str) -> Any:  # noqa: ANN401  # any library's
    """Return an array in the dtype called ``name``, by the library's own cast.

    Raises:
        PromotionError: The library has no such dtype.
    """
    library = library_of(array)
    try:
        if library == "torch":
            return array.to(getattr(namespace_of(array), name))
        return array.astype(name)
    except (AttributeError, TypeError) as error:
        more = "; want import ml_dtypes, which adds it" if library == "numpy" else ""
        msg = f"{library} has no dtype {name}{more}"
        raise PromotionError(msg) from error


def source_of(array: object) -> str:
    """Return the dtype of a float array.

    Raises:
        PromotionError: It is no array, or not one of real floats.
    """
    name = dtype_of(array)
    found = format_of(name)
    if found.kind != "float" or found.bits < 16:  # noqa: PLR2004  # as the message says
        msg = (
            f"cannot round an array of {name} to 8 bits; want one of floats of 16 bits "
            f"or more"
        )
        raise PromotionError(msg)
    return name


def eight_bits(name: str) -> Format:
    """Return the 8-bit format called ``name``, a number format with a sign.

    Raises:
        PromotionError: It is another kind of format; the message has those there are.
    """
    found = format_of(name)
    if name not in EIGHT_BIT_FLOATS:
        msg = (
            f"cannot round to {name} here; want an 8-bit float with a sign, such as "
            f"float8_e4m3fn, float8_e5m2, float8_e4m3fnuz or float8_e5m2fnuz"
        )
        raise PromotionError(msg)
    return found


# Rounding to the values of an 8-bit format, by arithmetic that is exact.
#
# The power of two below a number is the number with its mantissa and sign cleared. A
# quotient by a power of two, the rounding of the quotient to a whole number and the
# product are exact in float32, so that every library and device gives the same values.

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


# Rounding of NumPy arrays to the values of any float format, to nearest.


def nearest(x: Any, dtype: str) -> Any:  # noqa: ANN401  # NumPy is loaded when called
    """Round to the values of a format, to nearest, ties to even, as a cast would.

    Args:
        x: Float64 array of NumPy, of any shape.
        dtype: Name of a float format, such as ``bfloat16``.

    Returns:
        A float64 array. A number beyond the range, after rounding, is infinite; NaN
        where the format has no infinity, and its largest number where it has neither.

    Raises:
        PromotionError: There is no such format of floats.
    """
    import numpy as np  # noqa: PLC0415  # loaded where it is used

    target = format_of(dtype)
    if target.kind != "float":
        msg = f"cannot round to {dtype} here; want a format of floats, such as bfloat16"
        raise PromotionError(msg)
    wide = np.asarray(x, np.float64)
    held = np.where(np.isfinite(wide), wide, 0.0)
    _, above = np.frexp(np.maximum(np.abs(held), target.smallest_normal))
    spacing = np.ldexp(1.0, above - target.precision)
    value = np.rint(held / spacing) * spacing
    beyond = {"inf": np.inf, "nan": np.nan}.get(target.overflow, target.max)
    value = np.where(np.abs(value) > target.max, np.copysign(beyond, value), value)
    return np.where(np.isfinite(wide), value, wide)


# Casts to 8-bit dtypes that saturate, with the same bits in every library.
#
# The libraries' own casts differ beyond the range: torch makes an infinity 448 in
# float8_e4m3fn, JAX and ml_dtypes NaN. They also differ in the bits of a NaN.


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


# Rounding to 8-bit formats with a scale for the whole tensor.


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


# Random numbers for stochastic rounding, from a seed.


def uniform_draws(x: Any, seed: Any) -> Any:  # noqa: ANN401  # any library's
    """Return uniform numbers of [0, 1), float32, in the shape of ``x``.

    Each library draws by its own generator: the same seed gives the same numbers in one
    library, and others in another.

    Args:
        x: An array of NumPy, JAX or torch; only its shape and device are read.
        seed: An ``int``; for JAX a key of ``jax.random``, too.
    """
    library = library_of(x)
    xp = namespace_of(x)
    if library == "numpy":
        return xp.random.default_rng(seed).random(x.shape, dtype=xp.float32)
    if library == "torch":
        generator = xp.Generator(device=x.device).manual_seed(seed)
        return xp.rand(x.shape, generator=generator, device=x.device, dtype=xp.float32)
    random: Any = sys.modules["jax"].random
    key = random.key(seed) if isinstance(seed, int) else seed
    return random.uniform(key, x.shape)
