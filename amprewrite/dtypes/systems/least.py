"""The least dtype that represents a value, as ``numpy.min_scalar_type`` has it.

Source: ``numpy.min_scalar_type``; ``min_scalar_type_num`` in
numpy/core/src/multiarray/convert_datatype.c. Measured on NumPy 1.26.4 and 2.4.
"""

import math
import struct
from typing import NamedTuple

from amprewrite.dtypes.formats import format_of
from amprewrite.dtypes.operands import Operand
from amprewrite.errors import PromotionError

_UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
_SIGNED = ("int8", "int16", "int32", "int64")

_HALF, _SINGLE = 65000.0, 3.4e38
"""NumPy's bounds on the magnitude of a float16 and a float32; not the formats' own."""


class Least(NamedTuple):
    """The least dtype that holds a value.

    Attributes:
        dtype: Its name.
        either: Whether it is unsigned and the signed dtype of its width does as well.
    """

    dtype: str
    either: bool = False

    @property
    def signed(self) -> str:
        """The signed dtype where that does as well, else ``dtype``."""
        return self.dtype.removeprefix("u") if self.either else self.dtype


def least_of(dtype: str, value: complex) -> Least:
    """Return the least dtype of the kind of ``dtype`` that holds ``value``.

    Raises:
        PromotionError: No integer dtype holds it.
    """
    match Operand(dtype).kind:
        case "int":
            return least_int(int(value.real))
        case "float":
            return Least(_least_float(dtype, float(value.real)))
        case "complex":
            number = complex(value)
            is_small = max(abs(number.real), abs(number.imag)) < _SINGLE
            is_finite = math.isfinite(number.real) and math.isfinite(number.imag)
            return Least("complex64" if is_small and is_finite else dtype)
        case _:
            return Least("bool")


def least_int(value: int) -> Least:
    """Return the least dtype that holds an integer.

    Raises:
        PromotionError: None does.
    """
    for unsigned, signed in zip(_UNSIGNED, _SIGNED, strict=True):
        if 0 <= value <= format_of(unsigned).max:
            return Least(unsigned, either=value <= format_of(signed).max)
        if format_of(signed).min <= value < 0:
            return Least(signed)
    raise PromotionError(f"no integer dtype holds {value}: it is an object")


def _least_float(dtype: str, value: float) -> str:
    if dtype == "float16":
        return dtype
    if dtype == "float32" and math.isfinite(value):
        (value,) = struct.unpack("f", struct.pack("f", value))  # as the array holds it
    if not math.isfinite(value) or abs(value) < _HALF:
        return "float16"
    return "float32" if abs(value) < _SINGLE else dtype


def choices(operand: Operand) -> set[Least]:
    """Return the least dtypes of a scalar; several if its value is unknown."""
    if operand.value is not None:
        return {least_of(operand.dtype, operand.value)}
    return {least_of(operand.dtype, x) for x in _samples(operand.dtype)}


def _samples(dtype: str) -> list[float]:
    """Return sample values of ``dtype`` that cover every least dtype it can have."""
    entry = format_of(dtype)
    edges: list[float] = [0, _HALF, entry.max]
    if entry.kind in ("int", "uint"):
        known = [format_of(name) for name in (*_SIGNED, *_UNSIGNED)]
        edges = [end for each in known for end in (each.min, each.max)]
    return [x for x in edges if entry.min <= x <= entry.max]
