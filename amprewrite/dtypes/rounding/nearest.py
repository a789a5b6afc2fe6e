"""Rounding of NumPy arrays to the values of any float format, to nearest."""

from typing import Any

from amprewrite.dtypes.formats import format_of
from amprewrite.errors import PromotionError


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
