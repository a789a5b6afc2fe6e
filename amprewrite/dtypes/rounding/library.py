"""The library of an array, found where the array came from; none is imported.

NumPy, ``jax.numpy`` and torch call the functions used here alike: ``where``,
``floor``, ``round``, ``copysign``, ``isfinite``.
"""

import sys
from typing import Any

from amprewrite.dtypes.arrays import dtype_of, library_of
from amprewrite.dtypes.formats import EIGHT_BIT_FLOATS, Format, format_of
from amprewrite.errors import PromotionError

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
